//! ATIF 1.7, the Agent Trajectory Interchange Format of Harbor: one document per trajectory.
//!
//! A step of the agent holds the results of its calls. What ATIF has no field for is under `extra`.

use searchmill_schemas::{Message, RecordKind, Role, ToolCall, Trajectory};
use serde_json::{Value, json};

use super::parts::{answered, arguments, details, filled, is_exact, rest, tools};

/// Builds the document.
pub(super) fn document(trajectory: &Trajectory) -> Value {
    let steps = steps(&trajectory.messages);
    let definitions = tools(trajectory);
    let extra = rest(trajectory, definitions.clone());
    filled([
        ("schema_version", json!("ATIF-v1.7")),
        ("trajectory_id", json!(trajectory.id)),
        (
            "agent",
            filled([
                ("name", json!("searchmill")),
                // ATIF requires a version of the agent; rows have only that of their kind.
                ("version", json!(RecordKind::Trajectory.version().to_string())),
                ("model_name", json!(trajectory.model)),
                ("tool_definitions", json!(definitions)),
                ("extra", json!({"policy": trajectory.policy, "protocol": trajectory.protocol})),
            ]),
        ),
        (
            "final_metrics",
            json!({
                "total_prompt_tokens": trajectory.prompt_tokens,
                "total_completion_tokens": trajectory.completion_tokens,
                "total_steps": steps.len(),
                "extra": {
                    "last_prompt_tokens": trajectory.last_prompt_tokens,
                    "last_completion_tokens": trajectory.last_completion_tokens,
                },
            }),
        ),
        ("steps", Value::Array(steps)),
        ("extra", Value::Object(extra)),
    ])
}

fn steps(messages: &[Message]) -> Vec<Value> {
    let mut steps: Vec<Value> = Vec::new();
    let mut rest = messages;
    while let Some((message, after)) = rest.split_first() {
        let mut results = 0;
        // The results that follow a message of the model belong to its step.
        while message.is_model() && after.get(results).is_some_and(|next| next.role == Role::Tool.name()) {
            results += 1;
        }
        let (results, after) = after.split_at(results);
        steps.push(step(steps.len() + 1, message, results));
        rest = after;
    }
    steps
}

fn step(number: usize, message: &Message, results: &[Message]) -> Value {
    let own = [("step_id", json!(number)), ("message", json!(message.content))];
    if !message.is_model() {
        // A text of the environment that follows no message of the model is a step of the system.
        let is_tool = message.role == Role::Tool.name();
        let source = if is_tool { "system" } else { message.role.as_str() };
        let held: &[&str] = if is_tool { &["content"] } else { &["content", "role"] };
        let extra = Value::Object(details(message, held));
        return filled(own.into_iter().chain([("source", json!(source)), ("extra", extra)]));
    }
    let results: Vec<Value> = results.iter().map(|told| result(told, message)).collect();
    let observation = if results.is_empty() { Value::Null } else { json!({"results": results}) };
    let calls: Vec<Value> = message.tool_calls.iter().map(call).collect();
    let mut held = vec!["content", "role", "reasoning", "prompt_tokens", "completion_tokens"];
    // ATIF has arguments as an object; a text that the object does not give back is stored in `extra`.
    if message.tool_calls.iter().all(is_exact) {
        held.push("tool_calls");
    }
    let metrics = filled([
        ("prompt_tokens", json!(message.prompt_tokens)),
        ("completion_tokens", json!(message.completion_tokens)),
    ]);
    filled(own.into_iter().chain([
        ("source", json!("agent")),
        ("reasoning_content", json!(message.reasoning)),
        ("tool_calls", if calls.is_empty() { Value::Null } else { Value::Array(calls) }),
        ("observation", observation),
        ("metrics", metrics),
        ("extra", Value::Object(details(message, &held))),
    ]))
}

fn call(call: &ToolCall) -> Value {
    json!({"tool_call_id": call.id, "function_name": call.name, "arguments": arguments(call).unwrap_or_default()})
}

/// A result refers only to a call of its step: ATIF rejects other ids, which go to `extra`.
fn result(told: &Message, said: &Message) -> Value {
    let known = answered(told, std::slice::from_ref(said)).map(|call| &call.id);
    let held: &[&str] = if known.is_some() { &["content", "role", "tool_call_id"] } else { &["content", "role"] };
    let extra = Value::Object(details(told, held));
    filled([("source_call_id", json!(known)), ("content", json!(told.content)), ("extra", extra)])
}
