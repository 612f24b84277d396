//! Tests of the converters on pairs.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
use searchmill_engine::operator::{OperatorEntry, OperatorError, entry};
use searchmill_schemas::{Example, Message, Pair, Role, Trajectory};
use serde_json::{Value, json};

use super::testing::one_text;
use crate::convert_to_openai::ConvertToOpenai;
use crate::convert_to_swift::ConvertToSwift;
use crate::convert_to_trl::ConvertToTrl;
use crate::shared::relation::testing::trajectories;

fn operator(name: &str) -> OperatorEntry {
    let all = [entry::<ConvertToTrl>(), entry::<ConvertToOpenai>(), entry::<ConvertToSwift>()];
    all.into_iter().find(|entry| entry.name == name).expect("an operator")
}

fn pair(chosen: Trajectory, rejected: Trajectory) -> Pair {
    Pair {
        id: chosen.id.clone(),
        question_id: chosen.question_id.clone(),
        chosen_id: chosen.id.clone(),
        rejected_id: rejected.id.clone(),
        chosen_score: Some(1.0),
        rejected_score: Some(0.0),
        margin: Some(1.0),
        chosen,
        rejected,
    }
}

/// Two rollouts that search alike and answer differently, and two that differ from the first search on.
fn pairs() -> Vec<Pair> {
    let rollouts = trajectories(2);
    let mut wrong = rollouts[0].clone();
    "q0@1".clone_into(&mut wrong.id);
    "<answer>No</answer>".clone_into(&mut wrong.messages[4].content);
    let mut other = rollouts[1].clone();
    "q1@1".clone_into(&mut other.id);
    other.messages.drain(2..4);
    vec![pair(rollouts[0].clone(), wrong), pair(rollouts[1].clone(), other)]
}

fn run(name: &str, rows: &[Pair], params: Value) -> Result<Outcome, OperatorError> {
    Harness::new().run(&operator(name), params, &inputs([("trajectories", rows_input(rows))]))
}

fn examples(name: &str, params: Value) -> Vec<Example> {
    run(name, &pairs(), params).expect("runs").read("examples")
}

fn json_of(example: &Example) -> Value {
    serde_json::from_str(&example.row).expect("JSON")
}

fn roles(messages: &Value) -> Vec<&str> {
    messages.as_array().expect("messages").iter().filter_map(|message| message["role"].as_str()).collect()
}

#[test]
fn trl_has_prompt_chosen_and_rejected() {
    let found = examples("convert-to-trl", json!({}));
    let row = json_of(&found[0]);
    assert_eq!(roles(&row["prompt"]), ["system", "user", "assistant", "tool"], "both searched alike");
    assert_eq!(row["chosen"], json!([{"role": "assistant", "content": "<answer>Answer 0</answer>"}]));
    assert_eq!(row["rejected"], json!([{"role": "assistant", "content": "<answer>No</answer>"}]));
    assert_eq!(row["tools"][0]["function"]["name"], "search");
    assert!(found[0].row.starts_with(r#"{"prompt": [{"role": "system", "#), "{}", found[0].row);
    let row = json_of(&found[1]);
    assert_eq!(roles(&row["prompt"]), ["system", "user"]);
    assert_eq!(roles(&row["chosen"]), ["assistant", "tool", "assistant", "tool", "assistant"]);
    assert_eq!(roles(&row["rejected"]), ["assistant", "tool", "assistant"]);
    let ids: Vec<_> =
        found.iter().map(|row| (row.id.as_str(), row.trajectory_id.as_deref(), row.format.as_str())).collect();
    assert_eq!(ids, [("q0@0", Some("q0@0"), "trl"), ("q1@0", Some("q1@0"), "trl")]);
}

#[test]
fn unpaired_rows_have_labels() {
    let found = examples("convert-to-trl", json!({"unpaired": true}));
    let ids: Vec<_> = found.iter().map(|row| (row.id.as_str(), row.trajectory_id.as_deref())).collect();
    let wanted = [("q0@0", "q0@0"), ("q0@0/rejected", "q0@1"), ("q1@0", "q1@0"), ("q1@0/rejected", "q1@1")];
    assert_eq!(ids, wanted.map(|(id, rollout)| (id, Some(rollout))));
    let row = json_of(&found[1]);
    assert_eq!((&row["label"], &row["completion"][0]["content"]), (&json!(false), &json!("<answer>No</answer>")));
    assert_eq!(json_of(&found[0])["label"], json!(true));
    let found = examples("convert-to-swift", json!({"unpaired": true}));
    let labels: Vec<Value> = found.iter().map(|row| json_of(row)["label"].clone()).collect();
    assert_eq!(labels, [true, false, true, false].map(Value::from));
    assert!(found[3].row.ends_with(r#", "label": false}"#) && json_of(&found[3]).get("rejected_messages").is_none());
    let rollouts = inputs([("trajectories", rows_input(&trajectories(1)))]);
    let error = Harness::new().run(&operator("convert-to-trl"), json!({"unpaired": true}), &rollouts);
    assert!(error.expect_err("no pairs").message.starts_with("`unpaired` is for pairs"));
}

#[test]
fn swift_has_rejected_messages_and_tools() {
    let found = examples("convert-to-swift", json!({"thinking": true}));
    let row = json_of(&found[0]);
    assert_eq!(row["tools"], row["rejected_tools"]);
    assert_eq!(roles(&row["messages"]), ["system", "user", "assistant", "tool_call", "tool_response", "assistant"]);
    assert_eq!(row["rejected_messages"][5], json!({"role": "assistant", "content": "<answer>No</answer>"}));
    assert_eq!(row["messages"][2]["content"], "<think>\nI should search.\n</think>\n\n");
    let batch = run("convert-to-swift", &pairs(), json!({})).expect("runs").batch("examples");
    let texts = |name: &str| batch[name].as_string::<i32>().iter().map(|text| text.expect("text").to_owned()).collect();
    let (chosen, rejected): (Vec<String>, Vec<String>) = (texts("text"), texts("rejected_text"));
    assert!(chosen[0].ends_with("<answer>Answer 0</answer><|im_end|>"), "{}", chosen[0]);
    assert!(rejected[0].ends_with("<answer>No</answer><|im_end|>"), "{}", rejected[0]);
    for (name, texts) in [("loss_spans", &chosen), ("rejected_loss_spans", &rejected)] {
        for (row, text) in texts.iter().enumerate() {
            let spans = batch[name].as_list::<i32>().value(row);
            let ends = spans.as_struct()["end"].as_primitive::<Int64Type>();
            assert_eq!(ends.values().last(), Some(&(text.len() as i64)), "{name} of row {row}");
        }
    }
    let labelled = run("convert-to-swift", &pairs(), json!({"unpaired": true})).expect("runs").batch("examples");
    assert!(labelled.column_by_name("rejected_text").is_none() && labelled["text"].null_count() == 4);
}

#[test]
fn openai_has_input_and_two_outputs() {
    let found = examples("convert-to-openai", json!({}));
    let row = json_of(&found[0]);
    assert_eq!(roles(&row["input"]["messages"]), ["system", "user", "assistant", "tool"]);
    assert_eq!(row["input"]["tools"][0]["type"], "function");
    assert_eq!(row["preferred_output"], json!([{"role": "assistant", "content": "<answer>Answer 0</answer>"}]));
    assert_eq!(row["non_preferred_output"][0]["content"], "<answer>No</answer>");
}

#[test]
fn pairs_without_a_choice_are_rejected() {
    let rollouts = trajectories(3);
    let same = pair(rollouts[0].clone(), Trajectory { id: "q0@1".to_owned(), ..rollouts[0].clone() });
    let apart = pair(rollouts[1].clone(), rollouts[2].clone());
    let mut untooled = pairs().remove(0);
    "[]".clone_into(&mut untooled.rejected.tools);
    untooled.id = "x".to_owned();
    let mut broken = pairs().remove(1);
    broken.id = "y".to_owned();
    broken.rejected.messages.pop();
    let rows = [same, apart, untooled, broken];
    let wanted = [
        "the two conversations are the same",
        "the two conversations have different prompts",
        "the two rollouts were offered different tools",
        "the last turn is not the model's",
    ];
    for name in ["convert-to-trl", "convert-to-openai", "convert-to-swift"] {
        let rejects = run(name, &rows, json!({})).expect("runs").rejects();
        assert_eq!(rejects.iter().map(|reject| reject.message.as_str()).collect::<Vec<_>>(), wanted, "{name}");
        assert_eq!(rejects.iter().map(|reject| reject.id.as_str()).collect::<Vec<_>>(), ["q0@0", "q1@0", "x", "y"]);
    }
}

#[test]
fn outputs_and_texts_that_a_layout_cannot_hold() {
    let mut asked = pairs().remove(0);
    asked.rejected.messages[4..].clone_from_slice(&[Message::text(Role::Assistant, "What?")]);
    asked.rejected.messages.extend([Message::text(Role::User, "That."), Message::text(Role::Assistant, "No.")]);
    let rejects = run("convert-to-openai", std::slice::from_ref(&asked), json!({})).expect("runs").rejects();
    assert_eq!(rejects[0].message, "an output may only have messages of the model and of tools");
    assert!(run("convert-to-trl", &[asked], json!({})).expect("runs").rejects().is_empty());
    let mut other = one_text();
    "q0@1".clone_into(&mut other.id);
    " <answer>d</answer>".clone_into(&mut other.messages[4].content);
    let text = pair(one_text(), other);
    let rejects = run("convert-to-trl", std::slice::from_ref(&text), json!({})).expect("runs").rejects();
    assert!(rejects[0].message.contains("one text"));
    let swift: Vec<Example> = run("convert-to-swift", &[text], json!({})).expect("runs").read("examples");
    assert_eq!(json_of(&swift[0])["rejected_messages"][3]["loss"], json!(false));
}

#[test]
fn batches_change_nothing() {
    let rows: Vec<Pair> = pairs().into_iter().cycle().take(20).collect();
    let batch = |batch_rows: usize| {
        let mut harness = Harness::new();
        harness.batch_rows = batch_rows;
        let bound = inputs([("trajectories", rows_input(&rows))]);
        harness.run(&operator("convert-to-trl"), json!({}), &bound).expect("runs").batch("examples")
    };
    assert_eq!(batch(1), batch(8192));
    assert_eq!(batch(7), batch(8192));
}
