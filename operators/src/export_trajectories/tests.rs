//! Tests of `export-trajectories`: what a reader of the files gets back.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, ListArray, StringArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, batch_input, inputs, rows_input};
use searchmill_schemas::{Message, Role, Trajectory, to_batch};
use serde_json::{Value, json};

use super::*;
use crate::read::tests::read_text;
use crate::shared::columns::with_columns;
use crate::shared::relation::testing::{TOOLS, trajectories};

fn export(rows: &[Trajectory], batch_rows: usize, params: Value) -> String {
    let mut files = run(&inputs([("trajectories", rows_input(rows))]), batch_rows, params);
    assert_eq!(files.len(), 1);
    files.pop_first().unwrap().1
}

fn export_rewarded(rows: &[Trajectory], batch_rows: usize, params: Value) -> BTreeMap<String, String> {
    run(&inputs_of(rows, &vec![2.0; rows.len()]), batch_rows, params)
}

fn run(bound: &Inputs, batch_rows: usize, params: Value) -> BTreeMap<String, String> {
    let mut harness = Harness::new();
    harness.batch_rows = batch_rows;
    let outcome = harness.run(&entry::<ExportTrajectories>(), params, bound).unwrap();
    let files = std::fs::read_dir(&outcome.trees["files"]).unwrap().map(|file| file.unwrap());
    let read = |file: std::fs::DirEntry| {
        (file.file_name().into_string().unwrap(), std::fs::read_to_string(file.path()).unwrap())
    };
    files.map(read).collect()
}

/// Rows as `reward` writes them, with the parts `f1` and `format`.
fn inputs_of(rows: &[Trajectory], rewards: &[f64]) -> Inputs {
    let fields = vec![Field::new("name", DataType::Utf8, false), Field::new("value", DataType::Float64, false)];
    let names = StringArray::from(["f1", "format"].repeat(rows.len()));
    let values = Float64Array::from([1.5, 0.5].repeat(rows.len()));
    let parts = StructArray::new(fields.into(), vec![Arc::new(names), Arc::new(values)], None);
    let item = Arc::new(Field::new("item", parts.data_type().clone(), false));
    let lists = ListArray::new(item, OffsetBuffer::from_lengths(vec![2; rows.len()]), Arc::new(parts), None);
    let columns: [(&str, ArrayRef); 2] =
        [("reward", Arc::new(Float64Array::from(rewards.to_vec()))), ("reward_parts", Arc::new(lists))];
    let columns = columns.map(|(name, array)| (Field::new(name, array.data_type().clone(), false), array));
    let batch = with_columns(&to_batch(rows).unwrap(), columns.into()).unwrap();
    inputs([("trajectories", batch_input(RecordKind::Trajectory, batch))])
}

/// A rollout that is one text, with a prefill and a text of the environment.
fn text_protocol() -> Vec<Trajectory> {
    let mut row = trajectories(1).remove(0);
    row.id = "text@3".to_owned();
    (row.question_id, row.sample_index) = ("text".to_owned(), 3);
    (row.protocol, row.tools) = ("r1-searcher".to_owned(), "[]".to_owned());
    (row.metadata, row.model) = (Some("[1e400]".to_owned()), Some("m".to_owned()));
    row.messages.truncate(2);
    let mut told = Message::text(Role::Tool, "<|begin_of_documents|>\n(1)d<|end_of_documents|>\n\n");
    told.tool_call_id = Some("search_0".to_owned());
    row.messages.extend([
        Message::text(Role::Tool, "<think>"),
        Message::text(Role::Assistant, "I ask <|begin_of_query|> d<|end_of_query|>"),
        told,
        Message { finish_reason: Some("stop".to_owned()), ..Message::text(Role::Assistant, "") },
    ]);
    vec![row]
}

/// Rollouts with everything that is hard to write: errors, foreign ids, broken arguments, a prefill, no tools.
fn hard() -> Vec<Trajectory> {
    let mut rows = trajectories(3);
    rows[0].messages[2].tool_calls[0].arguments = "{'query': 1}".to_owned();
    rows[0].messages[3].error = Some("bad arguments".to_owned());
    rows[0].messages[3].tool_call_id = Some("other".to_owned());
    rows[0].messages[4].finish_reason = Some("length".to_owned());
    rows[0].messages[4].prompt_tokens = Some(7);
    rows[1].messages.insert(2, Message::text(Role::Tool, "<think>"));
    rows[1].tools = "not JSON".to_owned();
    rows[2].golden_answers.clear();
    rows
}

/// Rollouts that a reader of the formats alone would change: definitions in other forms, and a request about results
/// with the model's reply.
fn odd() -> Vec<Trajectory> {
    let tools = [
        r#"[{"function":{"name":"search","strict":null},"type":"function"}]"#,
        r#"[{"name":"search"}]"#,
        r#"[{"function":"search","name":"search"}]"#,
        "[]",
        "null",
    ];
    let mut rows = trajectories(tools.len());
    for (row, tools) in rows.iter_mut().zip(tools) {
        row.id = format!("odd-{}", row.id);
        row.tools = tools.to_owned();
    }
    let named = |role| Message { tool_call_id: Some("call_0".to_owned()), ..Message::text(role, "[1]") };
    rows[0].messages.splice(4..4, [named(Role::User), named(Role::Assistant)]);
    rows
}

/// Reads the files of a format back with the layout of the same name.
fn read_back(format: &str, files: &BTreeMap<String, String>) -> Vec<Trajectory> {
    let name = if format == "nemo-gym" { "rollouts.jsonl" } else { files.keys().next().unwrap() };
    let outcome = read_text(name, &files[name], json!({"as": "trajectory", "layout": format})).unwrap();
    assert_eq!(outcome.rejects(), []);
    outcome.read("rows")
}

const FORMATS: [&str; 4] = ["atif", "inspect", "verifiers", "nemo-gym"];

#[test]
fn every_format_gives_every_column_back() {
    let mut rows = hard();
    rows.extend(text_protocol().into_iter().chain(odd()));
    for format in FORMATS {
        let back = read_back(format, &export_rewarded(&rows, 8192, json!({"format": format})));
        assert_eq!(back.len(), rows.len(), "{format}");
        for (back, row) in back.iter().zip(&rows) {
            assert_eq!(back, row, "{format}");
        }
    }
}

#[test]
fn formats_without_rewards_take_any_column_of_that_name() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["high"; 2]));
    let column = (Field::new("reward", DataType::Utf8, false), texts);
    let batch = with_columns(&to_batch(&trajectories(2)).unwrap(), vec![column]).unwrap();
    let bound = inputs([("trajectories", batch_input(RecordKind::Trajectory, batch))]);
    let export = |format: &str| Harness::new().run(&entry::<ExportTrajectories>(), json!({"format": format}), &bound);
    for format in ["atif", "inspect"] {
        assert!(export(format).is_ok(), "{format}");
    }
    let error = export("verifiers").unwrap_err();
    assert!(error.message.contains("the column `reward` is Utf8, not numbers"), "{error}");
}

#[test]
fn an_atif_document_by_field() {
    let rows = hard();
    let written = export(&rows, 8192, json!({"format": "atif"}));
    let documents: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (document, row) in documents.iter().zip(&rows) {
        assert_eq!(document["extra"]["golden_answers"], json!(row.golden_answers));
        assert_eq!(document["extra"]["evidence"], json!(row.evidence));
    }
    assert_eq!(documents[0]["schema_version"], "ATIF-v1.7");
    assert_eq!(documents[0]["agent"]["tool_definitions"], serde_json::from_str::<Value>(TOOLS).unwrap());
    assert_eq!(documents[0]["steps"][0], json!({"step_id": 1, "source": "system", "message": "Use the search tool."}));
    assert_eq!(documents[0]["steps"][2]["observation"]["results"][0].get("source_call_id"), None, "no such call");
    assert_eq!(documents[1]["extra"]["tools_text"], "not JSON");
    assert_eq!(documents[0]["extra"]["metadata"], json!({"k": 1}));
}

#[test]
fn a_trace_of_verifiers_by_field() {
    let files = export_rewarded(&hard(), 8192, json!({"format": "verifiers", "name": "hotpotqa"}));
    let lines: Vec<Value> = files["traces.jsonl"].lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (episode, trace) = (&lines[2], &lines[2]["traces"][0]);
    assert_eq!((&episode["env"]["id"], &episode["group"]["id"]), (&json!("hotpotqa"), &json!("q2")));
    assert_eq!(trace["task"]["data"]["system_prompt"], "Use the search tool.");
    assert_eq!((&trace["tools"][0]["name"], &trace["tools"][0]["type"]), (&json!("search"), &json!("function")));
    assert_eq!(trace["rewards"], json!({"f1": {"score": 1.5, "weight": 1.0}, "format": {"score": 0.5, "weight": 1.0}}));
    let tool = &trace["nodes"][3]["message"];
    assert_eq!(
        (&tool["role"], &tool["name"], &tool["tool_call_id"]),
        (&json!("tool"), &json!("search"), &json!("call_0"))
    );
    assert_eq!((&trace["nodes"][3]["parent"], &trace["nodes"][2]["sampled"]), (&json!(2), &json!(true)));
    let foreign = &lines[0]["traces"][0]["nodes"][3]["message"];
    assert_eq!((&foreign["role"], foreign.get("tool_call_id")), (&json!("user"), None), "it answers no call");
    let without = export(&hard(), 8192, json!({"format": "verifiers"}));
    let first: Value = serde_json::from_str(without.lines().next().unwrap()).unwrap();
    assert_eq!(first["traces"][0]["rewards"], json!({}), "rows without the column `reward`");
}

#[test]
fn rollouts_of_nemo_gym_join_with_their_inputs() {
    let mut rows = trajectories(3);
    rows[2] = Trajectory { id: "q0@1".to_owned(), sample_index: 1, ..rows[0].clone() };
    let files = export_rewarded(&rows, 8192, json!({"format": "nemo-gym", "name": "search_agent"}));
    let lines =
        |name: &str| -> Vec<Value> { files[name].lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    let (asked, rollouts) = (lines("rollouts_materialized_inputs.jsonl"), lines("rollouts.jsonl"));
    let place = |row: &Value| (row["_ng_task_index"].as_u64().unwrap(), row["_ng_rollout_index"].as_u64().unwrap());
    assert_eq!(asked.iter().map(place).collect::<Vec<_>>(), [(0, 0), (1, 0), (0, 1)]);
    assert_eq!(rollouts.iter().map(place).collect::<Vec<_>>(), [(0, 0), (1, 0), (0, 1)]);
    let first = &rollouts[0];
    assert_eq!(first["responses_create_params"], asked[0]["responses_create_params"]);
    assert_eq!((&first["reward"], &first["reward_parts"]["format"]), (&json!(2.0), &json!(0.5)));
    assert_eq!(first["agent_ref"]["name"], "search_agent");
    let kinds: Vec<_> =
        first["response"]["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call_output", "message"]);
    let bound = inputs_of(&rows, &[1.0, f64::NAN, 0.5]);
    let outcome = Harness::new().run(&entry::<ExportTrajectories>(), json!({"format": "nemo-gym"}), &bound).unwrap();
    assert_eq!(outcome.rejects()[0].id, "q1@0", "a row without a reward is no reward of 0");
    let bare = inputs([("trajectories", rows_input(&rows))]);
    let error = Harness::new().run(&entry::<ExportTrajectories>(), json!({"format": "nemo-gym"}), &bare).unwrap_err();
    assert!(error.message.contains("no column `reward`"), "{error}");
}

#[test]
fn an_inspect_log_has_a_sample_for_each_trajectory() {
    let log: Value =
        serde_json::from_str(&export(&hard(), 8192, json!({"format": "inspect", "name": "demo"}))).unwrap();
    assert_eq!((&log["version"], &log["eval"]["task"]), (&json!(2), &json!("demo")));
    assert_eq!(log["results"]["scores"][1]["metrics"]["mean"]["value"], 1.0);
    assert_eq!(log["results"]["scores"][1]["scored_samples"], 2, "one has no golden answers");
    let samples = log["samples"].as_array().unwrap();
    assert_eq!((samples.len(), samples[2].get("scores")), (3, None));
    let sample = &samples[0];
    assert_eq!((&sample["id"], &sample["epoch"]), (&json!("q0"), &json!(1)));
    assert_eq!(sample["messages"][0], json!({"role": "system", "content": "Use the search tool.", "source": "input"}));
    let call = &sample["messages"][2]["tool_calls"][0];
    assert_eq!(call["parse_error"], "the arguments are not an object: {'query': 1}");
    assert_eq!(sample["messages"][3]["error"], json!({"type": "unknown", "message": "bad arguments"}));
    assert_eq!(sample["output"]["choices"][0]["stop_reason"], "max_tokens");
    assert_eq!(sample["metadata"]["tools"], serde_json::from_str::<Value>(TOOLS).unwrap());
    assert_eq!(samples[2]["messages"][3]["function"], "search");
}

#[test]
fn batches_change_nothing_and_nothing_is_an_empty_file() {
    for format in FORMATS {
        let rows = trajectories(30);
        let whole = export_rewarded(&rows, 8192, json!({"format": format}));
        for batch_rows in [1, 7] {
            assert_eq!(export_rewarded(&rows, batch_rows, json!({"format": format})), whole);
        }
    }
    assert_eq!(export(&[], 7, json!({"format": "atif"})), "");
    let log: Value = serde_json::from_str(&export(&[], 7, json!({"format": "inspect"}))).unwrap();
    assert_eq!((&log["samples"], &log["results"]["scores"]), (&json!([]), &json!([])));
    let blank = json!({"format": "inspect", "name": " "});
    let bound = inputs([("trajectories", rows_input(&trajectories(1)))]);
    let error = Harness::new().run(&entry::<ExportTrajectories>(), blank, &bound).unwrap_err();
    assert!(error.message.starts_with("name: "), "{error}");
}
