//! `traces.jsonl` of verifiers (PrimeIntellect-ai/verifiers 0.4, `verifiers/v1/episode.py` and `trace.py`): one episode
//! per line, or one trace (0.3). A trace is a graph of messages; the last branch is read.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::{Map, Value};

use super::exchange::{
    calls, content, definitions_of_chat, model_message, own, prediction, question, role, row_of, take_object,
    tool_message, with_details, with_rest,
};
use super::field::{as_text, items, metadata, object, take_id, take_list, take_text, take_texts, text_of};

/// Reads one episode.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut trace = object(record)?;
    // The trace of an episode with one, or the record itself.
    if !trace.contains_key("nodes") {
        let mut traces = take_list(&mut trace, "traces");
        trace = match (traces.len(), traces.pop()) {
            (1, Some(Value::Object(trace))) => trace,
            (count, _) => return Err(format!("the episode has {count} traces; a row holds one")),
        };
    }
    if trace.get("ok") == Some(&Value::Bool(false))
        && let Some(last) = items(trace.get("errors")).last()
    {
        let (kind, message) = (text_of(last.get("type")), text_of(last.get("message")));
        return Err(format!("the trace failed: {}: {}", kind.unwrap_or_default(), message.unwrap_or_default()));
    }
    let nodes = take_list(&mut trace, "nodes");
    let calls = take_list(&mut trace, "calls");
    let info = take_object(&mut trace, "info");
    let rest = own(info.get("trajectory"));
    let details = items(rest.and_then(|rest| rest.get("messages")));
    let mut messages = Vec::new();
    for position in last_branch(&nodes)? {
        let call = calls.iter().find(|call| call.get("node").and_then(Value::as_u64) == Some(position as u64));
        let message = message(&nodes[position], call).map_err(|error| format!("`nodes.{position}`: {error}"))?;
        messages.push(with_details(message, details.get(position))?);
    }
    let mut task = take_object(&mut trace, "task");
    let mut data = take_object(&mut task, "data");
    let named = take_text(&mut data, &["name", "idx"]).or_else(|| take_text(&mut task, &["key"]));
    let asked = take_text(&mut data, &["prompt"]).or_else(|| question(&messages)).unwrap_or_default();
    let prediction = prediction(&messages);
    let mut row = row_of(named.unwrap_or_else(|| number.to_string()), asked, messages, prediction);
    row.golden_answers = take_texts(&mut data, &["golden_answers", "answers", "answer"])?;
    row.tools = Value::Array(definitions_of_chat(take_list(&mut trace, "tools"))).to_string();
    if let Some(reason @ ("max_turns" | "max_total_tokens")) = trace.get("stop_condition").and_then(Value::as_str) {
        row.finish_reason = reason.into();
    }
    row.id = take_id(&mut trace, &["id"], number);
    row.model = text_of(trace.get("agent").and_then(|agent| agent.pointer("/config/model")));
    row.metadata = metadata(further(&mut trace, data, &info));
    for message in &row.messages {
        row.prompt_tokens = row.prompt_tokens.saturating_add(message.prompt_tokens.unwrap_or_default());
        row.completion_tokens = row.completion_tokens.saturating_add(message.completion_tokens.unwrap_or_default());
    }
    with_rest(row, rest)
}

/// Positions of the nodes from a root to the last node.
fn last_branch(nodes: &[Value]) -> Result<Vec<usize>, String> {
    let mut branch = Vec::new();
    let mut next = nodes.len().checked_sub(1);
    while let Some(position) = next {
        branch.push(position);
        next = match nodes[position].get("parent").and_then(Value::as_u64) {
            Some(parent) if parent < position as u64 => Some(parent as usize),
            // A cycle would never end.
            Some(_) => return Err(format!("`nodes.{position}.parent` is not an earlier node")),
            None => None,
        };
    }
    branch.reverse();
    Ok(branch)
}

fn message(node: &Value, call: Option<&Value>) -> Result<Message, String> {
    let item = node.get("message").ok_or("there is no `message`")?;
    let name = item.get("role").and_then(Value::as_str).unwrap_or_default();
    let role = role(name).ok_or_else(|| format!("`role` is `{name}`, not system, user, assistant or tool"))?;
    let content = content(item.get("content"));
    match role {
        Role::Assistant => {
            let tool_calls =
                calls(item.get("tool_calls"), ["id", "name"], |arguments| as_text(arguments).unwrap_or_default())?;
            let mut message = model_message(content, text_of(item.get("reasoning_content")), tool_calls);
            // Nodes of a prompt have no call.
            if let Some(call) = call {
                message.prompt_tokens = call.pointer("/usage/prompt_tokens").and_then(Value::as_i64);
                message.completion_tokens = call.pointer("/usage/completion_tokens").and_then(Value::as_i64);
                message.finish_reason = text_of(call.get("finish_reason"));
            }
            Ok(message)
        }
        Role::Tool => Ok(tool_message(content, text_of(item.get("tool_call_id")))),
        role => Ok(Message::text(role, content)),
    }
}

/// Task data, rewards, metrics and notes of a trace of another program.
fn further(trace: &mut Map<String, Value>, data: Map<String, Value>, info: &Map<String, Value>) -> Map<String, Value> {
    let mut further = data;
    for name in ["rewards", "metrics", "stop_condition", "errors"] {
        match trace.remove(name) {
            None | Some(Value::Null) => {}
            Some(Value::Object(empty)) if empty.is_empty() => {}
            Some(value) => drop(further.insert(name.to_owned(), value)),
        }
    }
    if !info.is_empty() {
        further.insert("info".to_owned(), Value::Object(info.clone()));
    }
    further
}
