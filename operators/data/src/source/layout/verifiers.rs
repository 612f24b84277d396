//! `traces.jsonl` of verifiers (PrimeIntellect-ai/verifiers 0.4, `verifiers/v1/episode.py` and `trace.py`): one episode
//! per line, or one trace (0.3). A trace is a graph of messages; the last branch is read.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::{Map, Value};

use super::exchange::{
    calls, content, definitions_of_chat, own, prediction, question, role, said, take_object, told, with_details,
    with_rest,
};
use super::field::{as_text, metadata, object, take_list, take_text, take_texts};
use super::outcome::{Outcome, trajectory_of};

/// Reads one episode.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut trace = trace_of(object(record)?)?;
    if let Some(error) = failure(&trace) {
        return Err(format!("the trace failed: {error}"));
    }
    let nodes = take_list(&mut trace, "nodes");
    let calls = take_list(&mut trace, "calls");
    let info = take_object(&mut trace, "info");
    let rest = own(info.get("trajectory"));
    let kept = rest.and_then(|rest| rest.get("messages")).and_then(Value::as_array);
    let mut messages = Vec::new();
    for place in last_branch(&nodes)? {
        let call = calls.iter().find(|call| call.get("node").and_then(Value::as_u64) == Some(place as u64));
        let made = message(&nodes[place], call).map_err(|error| format!("`nodes.{place}`: {error}"))?;
        messages.push(with_details(made, kept.and_then(|kept| kept.get(place)))?);
    }
    let tools = Value::Array(definitions_of_chat(take_list(&mut trace, "tools"))).to_string();
    let mut task = take_object(&mut trace, "task");
    let mut data = take_object(&mut task, "data");
    let id = take_text(&mut trace, &["id"]).unwrap_or_else(|| number.to_string());
    let named = take_text(&mut data, &["name", "idx"]).or_else(|| take_text(&mut task, &["key"]));
    let asked = take_text(&mut data, &["prompt"]).or_else(|| question(&messages)).unwrap_or_default();
    let stopped = trace.get("stop_condition").and_then(Value::as_str);
    let finish_reason = ["max_turns", "max_total_tokens"].into_iter().find(|reason| stopped == Some(reason));
    let model = trace.get("agent").and_then(|agent| agent.pointer("/config/model")).and_then(as_text);
    let mut made = trajectory_of(Outcome {
        question_id: named.unwrap_or_else(|| number.to_string()),
        question: asked,
        golden_answers: take_texts(&mut data, &["golden_answers", "answers", "answer"])?,
        protocol: "tool_call",
        tools,
        prediction: prediction(&messages),
        messages,
        finish_reason,
        metadata: metadata(further(&mut trace, data, &info)),
    });
    made.id = id;
    made.model = model;
    let sum = |of: fn(&Message) -> Option<i64>| made.messages.iter().filter_map(of).fold(0, i64::saturating_add);
    (made.prompt_tokens, made.completion_tokens) =
        (sum(|message| message.prompt_tokens), sum(|message| message.completion_tokens));
    with_rest(made, rest)
}

/// The trace of an episode with one, or the record itself.
fn trace_of(mut fields: Map<String, Value>) -> Result<Map<String, Value>, String> {
    if fields.contains_key("nodes") {
        return Ok(fields);
    }
    let mut traces = take_list(&mut fields, "traces");
    match (traces.len(), traces.pop()) {
        (1, Some(Value::Object(trace))) => Ok(trace),
        (count, _) => Err(format!("the episode has {count} traces; a row holds one")),
    }
}

/// The last error of a trace that did not end well.
fn failure(trace: &Map<String, Value>) -> Option<String> {
    let failed = trace.get("ok").and_then(Value::as_bool) == Some(false);
    let last = trace.get("errors").filter(|_| failed).and_then(Value::as_array)?.last()?;
    let text = |name: &str| last.get(name).and_then(as_text).unwrap_or_default();
    Some(format!("{}: {}", text("type"), text("message")))
}

/// Places of the nodes from a root to the last node.
fn last_branch(nodes: &[Value]) -> Result<Vec<usize>, String> {
    let mut branch = Vec::new();
    let mut next = nodes.len().checked_sub(1);
    while let Some(place) = next {
        branch.push(place);
        let parent = nodes[place].get("parent").and_then(Value::as_u64).map(|parent| parent as usize);
        if parent.is_some_and(|parent| parent >= place) {
            return Err(format!("`nodes.{place}.parent` is not an earlier node"));
        }
        next = parent;
    }
    branch.reverse();
    Ok(branch)
}

fn message(node: &Value, call: Option<&Value>) -> Result<Message, String> {
    let given = node.get("message").ok_or("there is no `message`")?;
    let text = |name: &str| given.get(name).and_then(as_text);
    let name = given.get("role").and_then(Value::as_str).unwrap_or_default();
    let role = role(name).ok_or_else(|| format!("`role` is `{name}`, not system, user, assistant or tool"))?;
    let content = content(given.get("content"));
    Ok(match role {
        Role::Assistant => {
            let tokens = |name: &str| call.and_then(|call| call.pointer(&format!("/usage/{name}"))?.as_i64());
            let tool_calls =
                calls(given.get("tool_calls"), ["id", "name"], |given| as_text(given).unwrap_or_default())?;
            Message {
                prompt_tokens: tokens("prompt_tokens"),
                completion_tokens: tokens("completion_tokens"),
                finish_reason: call.and_then(|call| call.get("finish_reason").and_then(as_text)),
                ..said(content, text("reasoning_content"), tool_calls)
            }
        }
        Role::Tool => told(content, text("tool_call_id")),
        role => Message::text(role, content),
    })
}

/// Task data, rewards, metrics and notes of a trace of another program.
fn further(trace: &mut Map<String, Value>, data: Map<String, Value>, info: &Map<String, Value>) -> Map<String, Value> {
    let mut further = data;
    for name in ["rewards", "metrics", "stop_condition", "errors"] {
        let found = trace.remove(name).filter(|value| !value.is_null() && *value != Value::Object(Map::new()));
        further.extend(found.map(|value| (name.to_owned(), value)));
    }
    if !info.is_empty() {
        further.insert("info".to_owned(), Value::Object(info.clone()));
    }
    further
}
