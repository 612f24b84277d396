//! Logs of Inspect in JSON (UK AISI, `inspect_ai` 0.3.285, log version 2): `samples[].{id, epoch, input, target, messages,
//! output, scores, metadata, events}`. The head of the log is skipped.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::{Map, Value};

use super::exchange::{
    calls, content, definitions_of_chat, model_message, own, prediction, question, role, row_of, tagged, tool_message,
    with_details, with_rest,
};
use super::field::{count, items, metadata, object, take_id, take_text, take_texts, text_of};

/// Reads one sample.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    if let Some(error) = fields.get("error").filter(|error| !error.is_null()) {
        let message = text_of(error.get("message")).unwrap_or_else(|| error.to_string());
        return Err(format!("the sample failed: {message}"));
    }
    let Some(Value::Array(written)) = fields.remove("messages") else {
        return Err("`messages` is not a list; `inspect log convert --to json` writes whole logs".to_owned());
    };
    let noted = fields.remove("metadata").unwrap_or_default();
    let is_own = own(Some(&noted)).is_some();
    let mut messages = Vec::with_capacity(written.len());
    for (at, item) in written.iter().enumerate() {
        messages.push(message(item, is_own).map_err(|error| format!("`messages.{at}`: {error}"))?);
    }
    let question_id = take_id(&mut fields, &["id"], number);
    // Epochs count from 1, samples from 0.
    let epoch = i32::try_from(count(fields.get("epoch"))).unwrap_or(1);
    let asked = take_text(&mut fields, &["input"]).or_else(|| question(&messages)).unwrap_or_default();
    let output = fields.get("output").cloned().unwrap_or_default();
    // The tools of the first model call that had any.
    let mut offers = items(fields.get("events")).iter().filter_map(|event| event.get("tools"));
    let offered = offers.find(|tools| !items(Some(tools)).is_empty());
    let tools = items(noted.get("tools").or(offered)).to_vec();
    let golden_answers = take_texts(&mut fields, &["target"])?;
    let answer = tagged(&messages).or_else(|| scored_answer(&fields)).unwrap_or_else(|| prediction(&messages));
    let mut row = row_of(question_id, asked, messages, answer);
    row.golden_answers = golden_answers;
    row.tools = Value::Array(definitions_of_chat(tools)).to_string();
    row.metadata = metadata(further(&fields, &noted));
    row.sample_index = epoch.saturating_sub(1).max(0);
    row.id = format!("{}@{}", row.question_id, row.sample_index);
    row.model = text_of(output.get("model"));
    if let Some(Value::Object(models)) = fields.get("model_usage") {
        for usage in models.values() {
            row.prompt_tokens = row.prompt_tokens.saturating_add(count(usage.get("input_tokens")));
            row.completion_tokens = row.completion_tokens.saturating_add(count(usage.get("output_tokens")));
        }
    }
    with_rest(row, own(Some(&noted)))
}

/// The answer that the first scorer saw.
fn scored_answer(fields: &Map<String, Value>) -> Option<String> {
    let scores = fields.get("scores")?.as_object()?;
    scores.values().find_map(|score| text_of(score.get("answer")))
}

/// The scores and the metadata of a sample of another program.
fn further(fields: &Map<String, Value>, noted: &Value) -> Map<String, Value> {
    let mut further = noted.as_object().cloned().unwrap_or_default();
    if let Some(scores) = fields.get("scores").filter(|scores| !scores.is_null()) {
        further.insert("scores".to_owned(), scores.clone());
    }
    further
}

fn message(item: &Value, is_own: bool) -> Result<Message, String> {
    let name = item.get("role").and_then(Value::as_str).unwrap_or_default();
    let role = role(name).ok_or_else(|| format!("`role` is `{name}`, not system, user, assistant or tool"))?;
    let text = content(item.get("content"));
    let message = match role {
        Role::Assistant => {
            let thoughts = items(item.get("content")).iter().filter_map(|part| text_of(part.get("reasoning")));
            let reasoning = thoughts.reduce(|all, thought| all + &thought);
            model_message(text, reasoning, calls(item.get("tool_calls"), ["id", "function"], Value::to_string)?)
        }
        Role::Tool => Message {
            error: text_of(item.pointer("/error/message")),
            ..tool_message(text, text_of(item.get("tool_call_id")))
        },
        role => Message::text(role, text),
    };
    // Metadata of other programs may have names of our fields.
    if is_own { with_details(message, item.get("metadata")) } else { Ok(message) }
}
