//! DeepSearch-RL's `trajectory.jsonl` (ninehills/deepsearch-rl at 8fc901e): messages and tools of OpenAI's chat API with
//! the question, the prediction and the usage.

use searchmill_schemas::{Message, Observation, Role, ToolCall, Trajectory};
use serde_json::{Map, Value};

use super::exchange::content;
use super::field::{as_text, metadata, need_text, object, take_list, take_text, take_texts};
use super::outcome::{Outcome, trajectory_of};

/// Reads one trajectory. Scores, errors and settings of the requests stay in the metadata.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    let question_id = take_text(&mut fields, &["id"]).unwrap_or_else(|| number.to_string());
    let question = need_text(&mut fields, &["question"])?;
    let golden_answers = take_texts(&mut fields, &["golden_answers"])?;
    let Some(Value::Array(messages)) = fields.remove("messages") else {
        return Err("`messages` is not a list".to_owned());
    };
    let prediction = take_text(&mut fields, &["pred"]).unwrap_or_default().trim().to_owned();
    let made = Outcome {
        question_id,
        question,
        golden_answers,
        protocol: "tool_call",
        tools: Value::Array(take_list(&mut fields, "tools")).to_string(),
        messages: messages.iter().enumerate().map(|(at, said)| message(at, said)).collect::<Result<_, _>>()?,
        prediction,
        finish_reason: None,
        metadata: None,
    };
    Ok(measured(trajectory_of(made), fields))
}

/// Adds what the usage and the request tell.
fn measured(mut made: Trajectory, mut fields: Map<String, Value>) -> Trajectory {
    let count = |place: &str, name: &str| {
        let all = fields.get(place).map(|part| part.get("usage").unwrap_or(part));
        all.and_then(|usage| usage.get(name)).and_then(Value::as_i64).unwrap_or_default()
    };
    made.prompt_tokens = count("all_turns_tokens", "prompt_tokens");
    made.completion_tokens = count("all_turns_tokens", "completion_tokens");
    made.last_prompt_tokens = count("response_meta", "prompt_tokens");
    made.last_completion_tokens = count("response_meta", "completion_tokens");
    let model = |place: &str| fields.get(place).and_then(|part| part.get("model")).and_then(as_text);
    made.model = model("response_meta").or_else(|| model("request_meta"));
    if let Some(turns) = fields.get("rounds").and_then(Value::as_i64).and_then(|turns| i32::try_from(turns).ok()) {
        made.turns = turns;
        fields.remove("rounds");
    }
    fields.remove("all_turns_tokens");
    // The answer is the last message.
    if fields.get("answer").and_then(Value::as_str) == Some(made.answer.as_str()) {
        fields.remove("answer");
    }
    made.metadata = metadata(fields);
    made
}

fn message(at: usize, said: &Value) -> Result<Message, String> {
    let text = |name: &str| said.get(name).and_then(as_text);
    let role = text("role").ok_or_else(|| format!("`messages.{at}` has no `role`"))?;
    if ![Role::System, Role::User, Role::Assistant, Role::Tool].iter().any(|known| known.name() == role) {
        return Err(format!("`messages.{at}.role` is `{role}`, not system, user, assistant or tool"));
    }
    let calls = said.get("tool_calls").and_then(Value::as_array);
    let calls = calls.into_iter().flatten().map(|call| tool_call(at, call));
    let content = content(said.get("content"));
    let observations = if role == Role::Tool.name() { observations(&content) } else { Vec::new() };
    Ok(Message {
        role,
        content,
        reasoning: text("reasoning_content").or_else(|| text("reasoning")),
        tool_calls: calls.collect::<Result<_, _>>()?,
        tool_call_id: text("tool_call_id"),
        observations,
        ..Message::default()
    })
}

fn tool_call(at: usize, call: &Value) -> Result<ToolCall, String> {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").and_then(as_text);
    let arguments = function.get("arguments").map(|given| as_text(given).unwrap_or_else(|| given.to_string()));
    Ok(ToolCall {
        id: call.get("id").and_then(as_text).unwrap_or_default(),
        name: name.ok_or_else(|| format!("a call in `messages.{at}.tool_calls` has no `name`"))?,
        arguments: arguments.unwrap_or_default(),
    })
}

/// Chunks in the result of DeepSearch-RL's tool: a list `{chunk, chunk_id, score[, metadata.doc_id]}`, usually inside
/// `{"type": "text", "text": …}`. The first line of a chunk is its title; without `doc_id` the document's id is empty.
fn observations(content: &str) -> Vec<Observation> {
    let parsed = serde_json::from_str(content).unwrap_or(Value::Null);
    let inner = parsed.get("text").and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    let found = inner.unwrap_or(parsed);
    found.as_array().into_iter().flatten().filter_map(observation).collect()
}

fn observation(item: &Value) -> Option<Observation> {
    let (title, _) = item.get("chunk")?.as_str()?.split_once('\n')?;
    Some(Observation {
        chunk_id: item.get("chunk_id").and_then(as_text)?,
        document_id: item.pointer("/metadata/doc_id").and_then(as_text).unwrap_or_default(),
        title: Some(title.to_owned()),
        score: item.get("score").and_then(Value::as_f64).unwrap_or_default(),
    })
}
