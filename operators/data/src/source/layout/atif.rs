//! ATIF, the Agent Trajectory Interchange Format of Harbor (version 1.7, as PyPI's `atif` 1.8.0 reads it):
//! `schema_version, agent, steps[].{source, message, tool_calls, observation}`.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::Value;

use super::exchange::{
    calls, content, count, own, prediction, question, said, take_object, told, with_details, with_rest,
};
use super::field::{as_text, metadata, object, take_list, take_text};
use super::outcome::{Outcome, trajectory_of};

/// Reads one document.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    let Some(Value::Array(steps)) = fields.remove("steps") else {
        return Err("`steps` is not a list".to_owned());
    };
    let is_own = own(fields.get("extra")).is_some();
    let mut messages = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        messages.extend(messages_of(step, is_own).map_err(|error| format!("`steps.{at}`: {error}"))?);
    }
    let mut agent = take_object(&mut fields, "agent");
    let tools = Value::Array(take_list(&mut agent, "tool_definitions")).to_string();
    let model = take_text(&mut agent, &["model_name"]);
    let totals = take_object(&mut fields, "final_metrics");
    let question_id = take_text(&mut fields, &["trajectory_id", "session_id"]).unwrap_or_else(|| number.to_string());
    let extra = fields.remove("extra");
    if !is_own {
        fields.insert("agent".to_owned(), Value::Object(agent));
        fields.extend(extra.clone().map(|extra| ("extra".to_owned(), extra)));
    }
    let mut made = trajectory_of(Outcome {
        question: question(&messages).unwrap_or_default(),
        question_id,
        golden_answers: Vec::new(),
        protocol: "tool_call",
        tools,
        prediction: prediction(&messages),
        messages,
        finish_reason: None,
        metadata: metadata(fields),
    });
    made.model = model;
    made.prompt_tokens = count(&totals, "total_prompt_tokens");
    made.completion_tokens = count(&totals, "total_completion_tokens");
    with_rest(made, own(extra.as_ref()))
}

/// Returns the message of a step, and the results of its calls.
fn messages_of(step: &Value, is_own: bool) -> Result<Vec<Message>, String> {
    let extra = |value: &Value| value.get("extra").filter(|_| is_own).cloned();
    let text = content(step.get("message"));
    let reasoning = step.get("reasoning_content").and_then(as_text);
    let tokens = |name: &str| step.pointer(&format!("/metrics/{name}")).and_then(Value::as_i64);
    let message = match step.get("source").and_then(Value::as_str) {
        Some("agent") => {
            said(text, reasoning, calls(step.get("tool_calls"), ["tool_call_id", "function_name"], Value::to_string)?)
        }
        Some("user") => Message::text(Role::User, text),
        Some("system") => Message::text(Role::System, text),
        _ => return Err("`source` is not system, user or agent".to_owned()),
    };
    let message =
        Message { prompt_tokens: tokens("prompt_tokens"), completion_tokens: tokens("completion_tokens"), ..message };
    let mut messages = vec![with_details(message, extra(step).as_ref())?];
    let results = step.pointer("/observation/results").and_then(Value::as_array);
    for result in results.into_iter().flatten() {
        let message = told(content(result.get("content")), result.get("source_call_id").and_then(as_text));
        messages.push(with_details(message, extra(result).as_ref())?);
    }
    Ok(messages)
}
