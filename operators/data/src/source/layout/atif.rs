//! ATIF, the Agent Trajectory Interchange Format of Harbor (version 1.7, as PyPI's `atif` 1.8.0 reads it):
//! `schema_version, agent, steps[].{source, message, tool_calls, observation}`.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::Value;

use super::exchange::{
    calls, content, model_message, own, prediction, question, row_of, take_object, tool_message, with_details,
    with_rest,
};
use super::field::{count, items, metadata, object, take_id, take_list, take_text, text_of};

/// Reads one document.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    let Some(Value::Array(steps)) = fields.remove("steps") else {
        return Err("`steps` is not a list".to_owned());
    };
    let is_own = own(fields.get("extra")).is_some();
    let mut messages = Vec::new();
    // A step is a message and, if it called tools, their results.
    for (at, step) in steps.iter().enumerate() {
        messages.extend(messages_of(step, is_own).map_err(|error| format!("`steps.{at}`: {error}"))?);
    }
    let question_id = take_id(&mut fields, &["trajectory_id", "session_id"], number);
    let (question, prediction) = (question(&messages).unwrap_or_default(), prediction(&messages));
    let mut row = row_of(question_id, question, messages, prediction);
    let mut agent = take_object(&mut fields, "agent");
    row.tools = Value::Array(take_list(&mut agent, "tool_definitions")).to_string();
    row.model = take_text(&mut agent, &["model_name"]);
    let totals = take_object(&mut fields, "final_metrics");
    row.prompt_tokens = count(totals.get("total_prompt_tokens"));
    row.completion_tokens = count(totals.get("total_completion_tokens"));
    let extra = fields.remove("extra");
    // What our export wrote there comes back as columns.
    if !is_own {
        fields.insert("agent".to_owned(), Value::Object(agent));
        fields.extend(extra.clone().map(|extra| ("extra".to_owned(), extra)));
    }
    row.metadata = metadata(fields);
    with_rest(row, own(extra.as_ref()))
}

/// Returns the message of a step, and the results of its calls.
fn messages_of(step: &Value, is_own: bool) -> Result<Vec<Message>, String> {
    let text = content(step.get("message"));
    let mut message = match step.get("source").and_then(Value::as_str) {
        Some("agent") => {
            let tool_calls = calls(step.get("tool_calls"), ["tool_call_id", "function_name"], Value::to_string)?;
            model_message(text, text_of(step.get("reasoning_content")), tool_calls)
        }
        Some("user") => Message::text(Role::User, text),
        Some("system") => Message::text(Role::System, text),
        _ => return Err("`source` is not system, user or agent".to_owned()),
    };
    message.prompt_tokens = step.pointer("/metrics/prompt_tokens").and_then(Value::as_i64);
    message.completion_tokens = step.pointer("/metrics/completion_tokens").and_then(Value::as_i64);
    let mut messages = vec![completed(message, step, is_own)?];
    for result in items(step.pointer("/observation/results")) {
        let message = tool_message(content(result.get("content")), text_of(result.get("source_call_id")));
        messages.push(completed(message, result, is_own)?);
    }
    Ok(messages)
}

/// Completes a message with the fields that our export wrote beside the format; those of other programs mean nothing.
fn completed(message: Message, value: &Value, is_own: bool) -> Result<Message, String> {
    if is_own { with_details(message, value.get("extra")) } else { Ok(message) }
}
