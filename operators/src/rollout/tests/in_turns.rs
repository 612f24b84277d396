//! Tests of the protocol `searchlm`: over HTTP, with the teacher, recomputed, converted and scored.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Float64Type;
use searchmill_agent::protocol::{Action, ProtocolParams, ProtocolSettings};
use searchmill_fixtures::models::model_folder;
use searchmill_fixtures::openai_server::message;
use searchmill_retrieval::Found;
use searchmill_schemas::{Example, Message, to_batch};

use super::*;

const QUESTION: &str = "What is the capital of Italy?";
const PASSAGE: &str = "Italy\nItaly is a country in Europe. Its capital is Rome.";
const QUERY: &str = "capital Italy";

/// The request that asks the model to choose after a search.
pub(super) fn request() -> String {
    let params: ProtocolParams = serde_json::from_value(json!({"searchlm": {}})).expect("a protocol");
    let protocol = params.open(&ProtocolSettings { tool: Some("search"), ..ProtocolSettings::default() });
    let action = Action { id: "search_0".into(), tool: "search".into(), arguments: Ok(json!({"query": QUERY})) };
    let found = Found {
        chunk_id: "it#0".into(),
        document_id: "it".into(),
        title: Some("Italy".into()),
        contents: PASSAGE.into(),
        score: 1.0,
        sources: Vec::new(),
    };
    protocol.ask_about(&[(action, Ok(vec![found]))]).expect("a request").content
}

#[test]
fn a_server_is_asked_to_choose_in_a_conversation_of_its_own() {
    let steps = vec![
        Step::Say(message("<QUERY> capital Italy <SEARCH> [7] made up")),
        Step::Say(message("<FACT> Rome\n<FINAL>")),
        Step::Say(message("Rome")),
    ];
    let request = request();
    let script = [(QUESTION, steps), (request.as_str(), vec![Step::Say(message("[1]"))])];
    let params = json!({"protocol": "searchlm", "search": {"top_k": 1}, "user_prompt": "{question}"});
    let bench = Bench::new(&script).with(params);
    let got = bench.one(QUESTION);
    assert_eq!(authors(&got), ["user", "assistant", "user", "assistant", "tool", "assistant", "user", "assistant"]);
    assert_eq!((got.prediction.as_str(), got.finish_reason.as_str(), got.turns), ("Rome", "answered", 3));
    assert_eq!((got.prompt_tokens, got.last_prompt_tokens), (400, 100), "the choice is paid for");
    assert_eq!(got.messages[1].content, "<QUERY> capital Italy ", "a server that ignores the stop text");
    let shown = "<SEARCH> [1] Title: Italy. Content: Italy is a country in Europe. Its capital is Rome.";
    assert_eq!(got.messages[4].content, shown);
    let choice = bench.server.requests(&request);
    assert_eq!(choice[0].body["messages"], json!([{"role": "user", "content": request}]));
    let last = &bench.server.requests(QUESTION)[2].body;
    let roles: Vec<_> =
        last["messages"].as_array().expect("messages").iter().map(|told| told["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    assert_eq!(last["messages"][2], json!({"role": "user", "content": shown}), "no role `tool`, no id of a call");
    assert_eq!((last["stop"].clone(), last.get("tools")), (json!(["<SEARCH>"]), None));
}

/// A rollout of the teacher, and what recomputes it.
fn teachers(harness: &Harness) -> (Trajectory, impl Fn(&[Trajectory]) -> Vec<String>) {
    let mut asked = question("q", QUESTION);
    asked.evidence[0].fact = Some("Its capital is Rome.".to_owned());
    let bound = inputs([("questions", rows_input(&[asked])), ("search", bm25(harness, &small_corpus()))]);
    let params = json!({"policy": {"evidence": {"wording": "plain"}}, "protocol": "searchlm", "search": {"top_k": 3}});
    let outcome = harness.run(&entry::<Rollout>(), params.clone(), &bound).expect("the node runs");
    let bound_params = (entry::<Rollout>().bind)(params).map_err(|issue| issue.message).expect("params");
    let recheck = bound_params.declaration.recheck(&bound, &harness.context()).expect("opens").expect("a recheck");
    let check = move |rows: &[Trajectory]| {
        let found = recheck.check(&to_batch(rows).expect("rows")).expect("searches").differences;
        found.into_iter().map(|difference| difference.what).collect()
    };
    (outcome.read::<Trajectory>("trajectories").remove(0), check)
}

#[test]
fn the_teacher_chooses_what_shows_the_evidence_and_is_recomputed() {
    let harness = Harness::new();
    let (row, check) = teachers(&harness);
    assert_eq!((row.prediction.as_str(), row.tool_calls), ("Rome", 1), "{row:?}");
    let listed = &row.messages[2];
    assert!(listed.observations.len() > 1, "{listed:?}");
    let place = listed.observations.iter().position(|seen| seen.document_id == "it").expect("it was found") + 1;
    assert_eq!(row.messages[3].content, format!("[{place}]"));
    assert_eq!(row.messages[4].observations.len(), 1);
    assert_eq!(row.messages[5].content, "<FACT> Its capital is Rome.\n<FINAL>");
    assert_eq!(row.messages[7].content, "Rome");
    assert_eq!(check(std::slice::from_ref(&row)), Vec::<String>::new());
    let changed = |change: fn(&mut Trajectory)| {
        let mut row = row.clone();
        change(&mut row);
        check(&[row])
    };
    assert_eq!(changed(|row| row.messages[2].content.push('!')), ["message 2"]);
    assert!(changed(|row| row.messages[3].content = "none".to_owned())[0].contains("of the tool response"));
    assert!(changed(|row| row.messages[6].content.push('!'))[0].contains("message 6"));
    assert!(changed(|row| drop(row.messages.remove(3)))[0].contains("message 3"), "the choice is missing");
}

#[test]
fn a_rollout_and_its_choices_become_examples() {
    let harness = Harness::new();
    let (row, _) = teachers(&harness);
    let bound = inputs([("trajectories", rows_input(std::slice::from_ref(&row)))]);
    let outcome = harness.run(&entry::<crate::convert_to_swift::ConvertToSwift>(), json!({}), &bound).expect("runs");
    let examples = outcome.read::<Example>("examples");
    let ids: Vec<_> = examples.iter().map(|example| (example.id.as_str(), example.trajectory_id.as_deref())).collect();
    assert_eq!(ids, [("q@0", Some("q@0")), ("q@0/1", Some("q@0"))]);
    let messages = |at: usize| -> Vec<(String, String)> {
        let row: Value = serde_json::from_str(&examples[at].row).expect("JSON");
        let text = |message: &Value, name: &str| message[name].as_str().expect("a text").to_owned();
        let messages = row["messages"].as_array().expect("messages");
        messages.iter().map(|message| (text(message, "role"), text(message, "content"))).collect()
    };
    let roles: Vec<_> = messages(0).into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user", "assistant"]);
    assert_eq!(messages(0)[2].1, row.messages[4].content);
    assert_eq!(
        messages(1),
        [("user", &row.messages[2]), ("assistant", &row.messages[3])]
            .map(|(role, message)| { (role.to_owned(), message.content.clone()) })
    );
    let batch = outcome.batch("examples");
    let spans = batch.column_by_name("loss_spans").expect("spans").as_list::<i32>();
    assert_eq!([spans.value(0).len(), spans.value(1).len()], [3, 1], "every message of the model is learnt");
}

#[test]
fn the_gold_answer_is_scored_in_the_last_turn() {
    let harness = Harness::new();
    let (mut row, _) = teachers(&harness);
    row.golden_answers = vec!["Rome".to_owned()];
    let folder = model_folder(8192);
    let mut silent = row.clone();
    (silent.id, silent.prediction) = ("q@1".to_owned(), String::new());
    silent.messages.last_mut().expect("messages").content = "<QUERY> more".to_owned();
    let score = |rows: &[Trajectory], params: Value| {
        let bound = inputs([("trajectories", rows_input(rows)), ("model", tree_input(TreeKind::Model, folder.path()))]);
        harness.run(&entry::<crate::logprob::Logprob>(), params, &bound).expect("runs")
    };
    let sum = |outcome: &Outcome| {
        outcome.batch("trajectories").column_by_name("logprob").expect("a sum").as_primitive::<Float64Type>().value(0)
    };
    let gold = score(&[row.clone(), silent], json!({}));
    assert!(gold.rejects().is_empty(), "{:?}", gold.rejects());
    let sums =
        gold.batch("trajectories").column_by_name("logprob").expect("sums").as_primitive::<Float64Type>().clone();
    assert_eq!(sums.value(0), sums.value(1), "it takes the place of whatever the model said last");
    assert_eq!(sum(&gold), sum(&score(std::slice::from_ref(&row), json!({"span": "last_turn"}))));
    // The choice is no part of the conversation.
    let mut without = row;
    without.messages.retain(|message: &Message| !message.is_aside());
    assert_eq!(sum(&score(&[without], json!({}))), sum(&gold));
}
