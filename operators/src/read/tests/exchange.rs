//! Tests of the layouts of `read` for trajectories of other tools, on records as those tools write them. (Files of
//! `export-trajectories` are read back in its own tests.)

use searchmill_schemas::Trajectory;
use serde_json::{Value, json};

use super::read_text;

fn read(layout: &str, record: &Value) -> Result<Vec<Trajectory>, String> {
    let outcome = read_text("file.json", record.to_string(), json!({"as": "trajectory", "layout": layout}));
    outcome.map(|outcome| outcome.read("rows")).map_err(|error| error.message)
}

fn roles(row: &Trajectory) -> Vec<&str> {
    row.messages.iter().map(|message| message.role.as_str()).collect()
}

const SEARCH: &str = r#"{"type":"object","properties":{"query":{"type":"string"}}}"#;

/// A tool as all formats but ATIF write it: the function beside its type.
fn tool() -> Value {
    json!({"type": "function", "name": "search", "description": "S", "parameters": parameters()})
}

fn parameters() -> Value {
    serde_json::from_str(SEARCH).unwrap()
}

fn assert_tool(row: &Trajectory) {
    let tools: Value = serde_json::from_str(&row.tools).unwrap();
    let function = json!({"name": "search", "description": "S", "parameters": parameters()});
    assert_eq!(tools, json!([{"type": "function", "function": function}]));
}

/// System, user, a call with its result, the answer `Rome`.
fn assert_conversation(row: &Trajectory) {
    assert_eq!(roles(row), ["system", "user", "assistant", "tool", "assistant"]);
    let call = &row.messages[2].tool_calls[0];
    assert_eq!((call.id.as_str(), call.name.as_str(), call.arguments.as_str()), ("c1", "search", r#"{"query":"x"}"#));
    assert_eq!(row.messages[2].reasoning.as_deref(), Some("R"));
    assert_eq!((row.messages[3].tool_call_id.as_deref(), row.messages[3].content.as_str()), (Some("c1"), "found"));
    assert_eq!((row.question.as_str(), row.prediction.as_str()), ("Who?", "Rome"));
    assert_eq!((row.turns, row.tool_calls, row.model.as_deref()), (2, 1, Some("m")));
    assert_eq!((row.policy.as_str(), row.finish_reason.as_str()), ("external", "answered"));
}

#[test]
fn atif_of_another_agent() {
    let document = json!({
        "schema_version": "ATIF-v1.7", "session_id": "s", "trajectory_id": "t7", "notes": "n",
        "agent": {"name": "codex", "version": "1", "model_name": "m", "tool_definitions": [
            {"type": "function", "function": {"name": "search", "description": "S", "parameters": parameters()}}]},
        "final_metrics": {"total_prompt_tokens": 9, "total_completion_tokens": 4},
        "steps": [
            {"step_id": 1, "source": "system", "message": "S", "extra": {"error": 5}},
            {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Who?"}]},
            {"step_id": 3, "source": "agent", "message": "", "reasoning_content": "R", "metrics": {"prompt_tokens": 5},
             "tool_calls": [{"tool_call_id": "c1", "function_name": "search", "arguments": {"query": "x"}}],
             "observation": {"results": [{"source_call_id": "c1", "content": "found"}]}},
            {"step_id": 4, "source": "agent", "message": "So <answer> Rome </answer>", "timestamp": "2026-01-01T00:00:00Z"}]});
    let row = read("atif", &document).unwrap().remove(0);
    assert_conversation(&row);
    assert_tool(&row);
    assert_eq!((row.id.as_str(), row.prompt_tokens, row.messages[2].prompt_tokens), ("t7@0", 9, Some(5)));
    let kept: Value = serde_json::from_str(row.metadata.as_deref().unwrap()).unwrap();
    assert_eq!((&kept["notes"], &kept["agent"]["name"]), (&json!("n"), &json!("codex")));
    let mut odd = document;
    odd["steps"][1]["source"] = json!("robot");
    assert!(read("atif", &odd).unwrap_err().contains("file.json:1: `steps.1`: `source` is not system, user or agent"));
}

#[test]
fn a_log_of_inspect() {
    let sample = |id: Value, epoch: u8, error: Value| {
        json!({
            "id": id, "epoch": epoch, "input": "Who?", "target": "Rome", "error": error, "metadata": {"k": 1},
            "messages": [
                {"role": "system", "content": "S"}, {"role": "user", "content": "Who?"},
                {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "R"}, {"type": "text", "text": ""}],
                 "tool_calls": [{"id": "c1", "function": "search", "arguments": {"query": "x"}, "type": "function"}]},
                {"role": "tool", "content": "found", "tool_call_id": "c1", "function": "search"},
                {"role": "assistant", "content": "It is Rome."}],
            "output": {"model": "m"}, "scores": {"match": {"value": "C", "answer": "Rome"}},
            "events": [{"event": "state"}, {"event": "model", "tools": [{"name": "search", "description": "S", "parameters": parameters()}]}],
            "model_usage": {"m": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}}})
    };
    let failed = json!({"message": "no connection", "traceback": "…"});
    let log = json!({"version": 2, "status": "success", "eval": {"model": "m"},
        "samples": [sample(json!("a"), 1, Value::Null), sample(json!("a"), 2, Value::Null), sample(json!(3), 1, failed)]});
    let outcome = read_text("file.json", log.to_string(), json!({"as": "trajectory", "layout": "inspect"})).unwrap();
    let rows: Vec<Trajectory> = outcome.read("rows");
    assert_eq!(
        rows.iter().map(|row| (row.id.as_str(), row.sample_index)).collect::<Vec<_>>(),
        [("a@0", 0), ("a@1", 1)]
    );
    assert_conversation(&rows[0]);
    assert_tool(&rows[0]);
    assert_eq!((&rows[0].golden_answers, rows[0].completion_tokens), (&vec!["Rome".to_owned()], 4));
    assert_eq!(outcome.rejects()[0].message, "the sample failed: no connection", "no wrong answer");
}

#[test]
fn episodes_and_traces_of_verifiers() {
    let node = |parent: Value, message: Value| json!({"parent": parent, "message": message, "sampled": false});
    let trace = json!({
        "version": 1, "id": "abc", "task": {"type": "T", "data": {"idx": 4, "prompt": "Who?", "answer": "Rome"}, "key": "h"},
        "agent": {"config": {"model": "m"}, "name": "agent"}, "tools": [tool()], "ok": true, "errors": [],
        "nodes": [
            node(Value::Null, json!({"role": "system", "content": "S"})),
            node(json!(0), json!({"role": "user", "content": "Who?"})),
            node(json!(1), json!({"role": "assistant", "content": "another branch"})),
            node(json!(1), json!({"role": "assistant", "content": null, "reasoning_content": "R",
                "tool_calls": [{"id": "c1", "name": "search", "arguments": "{\"query\":\"x\"}"}]})),
            node(json!(3), json!({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "found"}]})),
            node(json!(4), json!({"role": "assistant", "content": " Rome "}))],
        "calls": [{"node": 3, "finish_reason": "tool_calls", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}],
        "rewards": {"exact": {"score": 1.0, "weight": 1.0}}, "metrics": {}, "info": {"x": 1}, "stop_condition": "done"});
    let episode =
        |traces: Value| json!({"id": "e", "env": {"id": "v"}, "task": trace["task"], "ok": true, "traces": traces});
    for record in [episode(json!([trace])), trace.clone()] {
        let row = read("verifiers", &record).unwrap().remove(0);
        assert_conversation(&row);
        assert_tool(&row);
        assert_eq!((row.id.as_str(), row.question_id.as_str(), row.prompt_tokens), ("abc", "4", 5));
        assert_eq!(row.messages[2].finish_reason.as_deref(), Some("tool_calls"));
        let kept: Value = serde_json::from_str(row.metadata.as_deref().unwrap()).unwrap();
        assert_eq!((&kept["rewards"]["exact"]["score"], &kept["info"]["x"]), (&json!(1.0), &json!(1)));
    }
    let two = read("verifiers", &episode(json!([trace, trace]))).unwrap_err();
    assert!(two.contains("the episode has 2 traces; a row holds one"), "{two}");
    let mut failed = trace.clone();
    (failed["ok"], failed["errors"]) = (json!(false), json!([{"type": "ProviderError", "message": "503"}]));
    assert!(read("verifiers", &failed).unwrap_err().contains("the trace failed: ProviderError: 503"));
    let mut circle = trace;
    circle["nodes"][5]["parent"] = json!(5);
    assert!(read("verifiers", &circle).unwrap_err().contains("`nodes.5.parent` is not an earlier node"));
}

#[test]
fn rollouts_of_nemo_gym() {
    let text = |text: &str| {
        json!({"type": "message", "id": "msg", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
    };
    let rollout = json!({
        "responses_create_params": {"tools": [tool()], "input": [
            {"role": "developer", "content": "S"}, {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]}]},
        "response": {"id": "r", "model": "m", "usage": {"input_tokens": 9, "output_tokens": 4}, "output": [
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "R"}]},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{\"query\":\"x\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "found"}, text("Rome")]},
        "reward": 1.0, "expected_answer": "Rome", "_ng_task_index": 7, "_ng_rollout_index": 2,
        "agent_ref": {"name": "simple_agent"}, "trajectory": "not searchmill's"});
    let row = read("nemo-gym", &rollout).unwrap().remove(0);
    assert_conversation(&row);
    assert_tool(&row);
    assert_eq!(
        (row.id.as_str(), row.sample_index, row.golden_answers.as_slice()),
        ("7@2", 2, &["Rome".to_owned()][..])
    );
    let kept: Value = serde_json::from_str(row.metadata.as_deref().unwrap()).unwrap();
    assert_eq!((&kept["reward"], &kept["trajectory"]), (&json!(1.0), &json!("not searchmill's")));
    let mut parts = rollout.clone();
    parts["response"]["output"] = json!([text("first"), text("second"),
        {"type": "function_call", "call_id": "c2", "name": "search", "arguments": ""}]);
    let row = read("nemo-gym", &parts).unwrap().remove(0);
    assert_eq!(roles(&row), ["system", "user", "assistant", "assistant"]);
    assert_eq!((row.messages[3].tool_calls.len(), row.prediction.as_str()), (1, ""), "a call is no answer");
    parts["response"]["output"][0]["type"] = json!("mcp_call");
    let error = read("nemo-gym", &parts).unwrap_err();
    assert!(error.contains("`response.output.0`: items of type `mcp_call` are not known"), "{error}");
    let mut failed = rollout;
    failed["_ng_failure_class"] = json!("timeout");
    assert!(read("nemo-gym", &failed).unwrap_err().contains("the rollout failed: timeout"));
}

#[test]
fn a_file_without_a_layout_needs_a_question_and_an_answer() {
    let read = |rows: &[Value], columns: Value| {
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        read_text("file.jsonl", text, json!({"as": "trajectory", "columns": columns}))
    };
    let rows = [
        json!({"query": "Who?", "gold": ["A", "B"], "said": "A", "level": 3}),
        json!({"query": "What?", "gold": "C", "said": ""}),
    ];
    let columns = json!({"question": "query", "golden_answers": "gold", "prediction": "said"});
    let made = read(&rows, columns.clone()).unwrap().read::<Trajectory>("rows");
    assert_eq!(
        (made[0].id.as_str(), made[1].question_id.as_str(), made[1].finish_reason.as_str()),
        ("0", "1", "no_answer")
    );
    assert_eq!((made[0].golden_answers.len(), made[0].tools.as_str(), made[0].answer.as_str()), (2, "[]", "A"));
    assert_eq!((roles(&made[0]), made[0].metadata.as_deref()), (vec!["user", "assistant"], Some(r#"{"level":3}"#)));
    // All that is missing is told together, with the fields that there are.
    let error = read(&rows, json!({"question_id": "level"})).unwrap_err();
    let wanted =
        "no record has `question`, `prediction`, `golden_answers`, which trajectories need and nothing else tells";
    assert_eq!(error.message, wanted);
    assert!(error.help.unwrap().contains("the records have gold, level, query, said"));
    // A record that lacks what others have is no guess.
    let mut some = rows.to_vec();
    some.push(json!({"query": "Where?", "gold": "D", "said": "D", "turns": 5}));
    let outcome = read(&some, columns).unwrap();
    assert_eq!(outcome.read::<Trajectory>("rows").len(), 1);
    assert_eq!(outcome.rejects()[0].message, "`turns` is missing");
}
