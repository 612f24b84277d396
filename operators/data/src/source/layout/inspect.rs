//! Logs of Inspect in JSON (UK AISI, `inspect_ai` 0.3.285, log version 2): `samples[].{id, epoch, input, target, messages,
//! output, scores, metadata, events}`. The head of the log is skipped.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::{Map, Value};

use super::exchange::{
    calls, content, definitions_of_chat, own, prediction, question, role, said, tagged, told, with_details, with_rest,
};
use super::field::{as_text, metadata, object, take_text, take_texts};
use super::outcome::{Outcome, trajectory_of};

/// Reads one sample.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    if let Some(error) = fields.get("error").filter(|error| !error.is_null()) {
        let message = error.get("message").and_then(as_text).unwrap_or_else(|| error.to_string());
        return Err(format!("the sample failed: {message}"));
    }
    let Some(Value::Array(items)) = fields.remove("messages") else {
        return Err("`messages` is not a list; `inspect log convert --to json` writes whole logs".to_owned());
    };
    let noted = fields.remove("metadata").unwrap_or_default();
    let is_own = own(Some(&noted)).is_some();
    let messages = items
        .iter()
        .enumerate()
        .map(|(at, item)| message(item, is_own).map_err(|error| format!("`messages.{at}`: {error}")));
    let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    let question_id = take_text(&mut fields, &["id"]).unwrap_or_else(|| number.to_string());
    let epoch = fields.get("epoch").and_then(Value::as_i64).and_then(|epoch| i32::try_from(epoch).ok()).unwrap_or(1);
    let asked = take_text(&mut fields, &["input"]).or_else(|| question(&messages)).unwrap_or_default();
    let output = fields.get("output").cloned().unwrap_or_default();
    let tools = noted.get("tools").or_else(|| offered(&fields)).and_then(Value::as_array).cloned().unwrap_or_default();
    let golden_answers = take_texts(&mut fields, &["target"])?;
    let mut made = trajectory_of(Outcome {
        question: asked,
        golden_answers,
        protocol: "tool_call",
        tools: Value::Array(definitions_of_chat(tools)).to_string(),
        prediction: tagged(&messages).or_else(|| scored_answer(&fields)).unwrap_or_else(|| prediction(&messages)),
        messages,
        finish_reason: None,
        metadata: metadata(further(&fields, &noted)),
        question_id,
    });
    made.sample_index = epoch.saturating_sub(1).max(0);
    made.id = format!("{}@{}", made.question_id, made.sample_index);
    made.model = output.get("model").and_then(as_text);
    let used = fields.get("model_usage").and_then(Value::as_object).into_iter().flat_map(Map::values);
    for usage in used {
        let tokens = |name: &str| usage.get(name).and_then(Value::as_i64).unwrap_or_default();
        made.prompt_tokens = made.prompt_tokens.saturating_add(tokens("input_tokens"));
        made.completion_tokens = made.completion_tokens.saturating_add(tokens("output_tokens"));
    }
    with_rest(made, own(Some(&noted)))
}

/// The tools of the first model call that had any.
fn offered(fields: &Map<String, Value>) -> Option<&Value> {
    let tools = fields.get("events")?.as_array()?.iter().filter_map(|event| event.get("tools"));
    tools.into_iter().find(|tools| tools.as_array().is_some_and(|tools| !tools.is_empty()))
}

/// The answer that the first scorer saw.
fn scored_answer(fields: &Map<String, Value>) -> Option<String> {
    let scores = fields.get("scores")?.as_object()?;
    scores.values().find_map(|score| score.get("answer").and_then(as_text))
}

/// The scores and the metadata of a sample of another program.
fn further(fields: &Map<String, Value>, noted: &Value) -> Map<String, Value> {
    let mut further = noted.as_object().cloned().unwrap_or_default();
    let scores = fields.get("scores").filter(|scores| !scores.is_null());
    further.extend(scores.map(|scores| ("scores".to_owned(), scores.clone())));
    further
}

fn message(item: &Value, is_own: bool) -> Result<Message, String> {
    let name = item.get("role").and_then(Value::as_str).unwrap_or_default();
    let role = role(name).ok_or_else(|| format!("`role` is `{name}`, not system, user, assistant or tool"))?;
    let text = content(item.get("content"));
    let message = match role {
        Role::Assistant => {
            said(text, reasoning(item), calls(item.get("tool_calls"), ["id", "function"], Value::to_string)?)
        }
        Role::Tool => Message {
            error: item.pointer("/error/message").and_then(as_text),
            ..told(text, item.get("tool_call_id").and_then(as_text))
        },
        role => Message::text(role, text),
    };
    with_details(message, item.get("metadata").filter(|_| is_own))
}

/// The reasoning parts of a message's content.
fn reasoning(item: &Value) -> Option<String> {
    let parts = item.get("content")?.as_array()?;
    let texts: Vec<String> = parts.iter().filter_map(|part| part.get("reasoning").and_then(as_text)).collect();
    (!texts.is_empty()).then(|| texts.concat())
}
