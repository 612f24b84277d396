//! DeepSearch-RL's `trajectory.jsonl` (ninehills/deepsearch-rl at 8fc901e): messages and tools of OpenAI's chat API with
//! the question, the prediction and the usage.

use searchmill_schemas::{Message, Observation, Role, ToolCall, Trajectory};
use serde_json::{Map, Value};

use super::exchange::{content, row_of};
use super::field::{
    as_text, count, items, metadata, need_text, object, take_id, take_list, take_text, take_texts, text_of,
};

/// Reads one trajectory. Scores, errors and settings of the requests stay in the metadata.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    let question_id = take_id(&mut fields, &["id"], number);
    let question = need_text(&mut fields, &["question"])?;
    let golden_answers = take_texts(&mut fields, &["golden_answers"])?;
    let Some(Value::Array(written)) = fields.remove("messages") else {
        return Err("`messages` is not a list".to_owned());
    };
    let mut messages = Vec::with_capacity(written.len());
    for (at, item) in written.iter().enumerate() {
        messages.push(message(at, item)?);
    }
    let prediction = take_text(&mut fields, &["pred"]).unwrap_or_default().trim().to_owned();
    let mut row = row_of(question_id, question, messages, prediction);
    row.golden_answers = golden_answers;
    row.tools = Value::Array(take_list(&mut fields, "tools")).to_string();
    let all = usage(&fields, "all_turns_tokens");
    row.prompt_tokens = count(all.get("prompt_tokens"));
    row.completion_tokens = count(all.get("completion_tokens"));
    let last = usage(&fields, "response_meta");
    row.last_prompt_tokens = count(last.get("prompt_tokens"));
    row.last_completion_tokens = count(last.get("completion_tokens"));
    // The server may name the model more exactly than the request did.
    for name in ["response_meta", "request_meta"] {
        if row.model.is_none()
            && let Some(part) = fields.get(name)
        {
            row.model = text_of(part.get("model"));
        }
    }
    if let Some(turns) = fields.get("rounds").and_then(Value::as_i64)
        && let Ok(turns) = i32::try_from(turns)
    {
        row.turns = turns;
        fields.remove("rounds");
    }
    fields.remove("all_turns_tokens");
    // The answer is the last message.
    if fields.get("answer").and_then(Value::as_str) == Some(row.answer.as_str()) {
        fields.remove("answer");
    }
    row.metadata = metadata(fields);
    Ok(row)
}

/// Returns the usage in a field: a part of it, or the field itself.
fn usage<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a Value {
    fields.get(name).map_or(&Value::Null, |part| part.get("usage").unwrap_or(part))
}

fn message(at: usize, item: &Value) -> Result<Message, String> {
    let Some(role) = text_of(item.get("role")) else { return Err(format!("`messages.{at}` has no `role`")) };
    if ![Role::System, Role::User, Role::Assistant, Role::Tool].iter().any(|known| known.name() == role) {
        return Err(format!("`messages.{at}.role` is `{role}`, not system, user, assistant or tool"));
    }
    let mut tool_calls = Vec::new();
    for call in items(item.get("tool_calls")) {
        let function = call.get("function").unwrap_or(call);
        let Some(name) = text_of(function.get("name")) else {
            return Err(format!("a call in `messages.{at}.tool_calls` has no `name`"));
        };
        let arguments = function.get("arguments").map(|value| as_text(value).unwrap_or_else(|| value.to_string()));
        let id = text_of(call.get("id")).unwrap_or_default();
        tool_calls.push(ToolCall { id, name, arguments: arguments.unwrap_or_default() });
    }
    let content = content(item.get("content"));
    let observations = if role == Role::Tool.name() { observations(&content) } else { Vec::new() };
    let reasoning = text_of(item.get("reasoning_content")).or(text_of(item.get("reasoning")));
    let tool_call_id = text_of(item.get("tool_call_id"));
    Ok(Message { role, content, reasoning, tool_calls, tool_call_id, observations, ..Message::default() })
}

/// Chunks in the result of DeepSearch-RL's tool: a list `{chunk, chunk_id, score[, metadata.doc_id]}`, usually inside
/// `{"type": "text", "text": …}`. The first line of a chunk is its title; without `doc_id` the document's id is empty.
fn observations(content: &str) -> Vec<Observation> {
    let mut parsed = serde_json::from_str(content).unwrap_or(Value::Null);
    if let Some(Value::String(text)) = parsed.get("text")
        && let Ok(inner) = serde_json::from_str(text)
    {
        parsed = inner;
    }
    items(Some(&parsed)).iter().filter_map(observation).collect()
}

fn observation(item: &Value) -> Option<Observation> {
    let (title, _) = item.get("chunk")?.as_str()?.split_once('\n')?;
    Some(Observation {
        chunk_id: text_of(item.get("chunk_id"))?,
        document_id: text_of(item.pointer("/metadata/doc_id")).unwrap_or_default(),
        title: Some(title.to_owned()),
        score: item.get("score").and_then(Value::as_f64).unwrap_or_default(),
    })
}
