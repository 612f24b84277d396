//! Trajectories in the formats of other tools: what their readers share.
//!
//! Files that `export-trajectories` wrote also hold the fields that their format has no place for: those override what a
//! reader finds elsewhere. Files of other programs lack them.

use searchmill_schemas::{Message, Role, ToolCall, Trajectory};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::field::{as_text, items, text_of};

/// Returns the object if `export-trajectories` wrote it: the fields of a trajectory.
pub(super) fn own(rest: Option<&Value>) -> Option<&Map<String, Value>> {
    let fields = rest?.as_object()?;
    let is_own = ["question_id", "finish_reason", "protocol"].iter().all(|name| fields.contains_key(*name));
    if is_own { Some(fields) } else { None }
}

/// Returns a trajectory of the protocol `tool_call`: sample 0, one turn for each message of the model, one search for
/// each tool message, the end that the prediction tells. Tokens are 0 (unknown); what else a file tells is set later.
pub(super) fn row_of(question_id: String, question: String, messages: Vec<Message>, prediction: String) -> Trajectory {
    let turns = messages.iter().filter(|message| message.is_model()).count();
    let tool_calls = messages.iter().filter(|message| message.role == Role::Tool.name()).count();
    let last = messages.iter().rev().find(|message| message.is_model());
    Trajectory {
        id: format!("{question_id}@0"),
        question_id,
        sample_index: 0,
        question,
        golden_answers: Vec::new(),
        question_type: None,
        evidence: Vec::new(),
        policy: "external".to_owned(),
        model: None,
        protocol: "tool_call".to_owned(),
        tools: "[]".to_owned(),
        answer: last.map(|message| message.content.clone()).unwrap_or_default(),
        messages,
        turns: i32::try_from(turns).unwrap_or(i32::MAX),
        tool_calls: i32::try_from(tool_calls).unwrap_or(i32::MAX),
        prompt_tokens: 0,
        completion_tokens: 0,
        last_prompt_tokens: 0,
        last_completion_tokens: 0,
        finish_reason: if prediction.trim().is_empty() { "no_answer" } else { "answered" }.to_owned(),
        prediction,
        metadata: None,
    }
}

/// Completes a trajectory with the fields beside the format, if there are any.
pub(super) fn with_rest(mut row: Trajectory, rest: Option<&Map<String, Value>>) -> Result<Trajectory, String> {
    let Some(rest) = rest else { return Ok(row) };
    // As they were written, to the byte; the parsed fields are for other programs.
    let metadata = match (rest.get("metadata_text"), rest.get("metadata")) {
        (Some(Value::String(text)), _) => Some(text.clone()),
        (_, Some(parsed @ Value::Object(_))) => Some(parsed.to_string()),
        _ => None,
    };
    let tools = rest.get("tools_text").and_then(Value::as_str).unwrap_or(&row.tools).to_owned();
    // The messages are those of the format, and long: they are spared the way through JSON.
    let messages = std::mem::take(&mut row.messages);
    let row = overridden(&row, rest, &["messages", "tools", "metadata"])?;
    Ok(Trajectory { messages, tools, metadata, ..row })
}

/// Completes a message with the fields beside the format.
pub(super) fn with_details(message: Message, details: Option<&Value>) -> Result<Message, String> {
    match details.and_then(Value::as_object) {
        Some(details) => overridden(&message, details, &[]),
        None => Ok(message),
    }
}

fn overridden<T: Serialize + DeserializeOwned>(
    record: &T,
    by: &Map<String, Value>,
    except: &[&str],
) -> Result<T, String> {
    let mut value = serde_json::to_value(record).map_err(|error| error.to_string())?;
    if let Some(fields) = value.as_object_mut() {
        for (name, field) in fields {
            if let Some(written) = by.get(name)
                && !except.contains(&name.as_str())
            {
                *field = written.clone();
            }
        }
    }
    serde_json::from_value(value).map_err(|error| format!("the fields of searchmill do not fit: {error}"))
}

/// Text, or the texts of a list of parts.
pub(super) fn content(value: Option<&Value>) -> String {
    match value {
        // Pictures and other parts have no text.
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| text_of(part.get("text"))).collect(),
        Some(value) => as_text(value).unwrap_or_default(),
        None => String::new(),
    }
}

/// A message by the model.
pub(super) fn model_message(content: String, reasoning: Option<String>, tool_calls: Vec<ToolCall>) -> Message {
    Message { reasoning, tool_calls, ..Message::text(Role::Assistant, content) }
}

/// A result of a tool.
pub(super) fn tool_message(content: String, tool_call_id: Option<String>) -> Message {
    Message { tool_call_id, ..Message::text(Role::Tool, content) }
}

/// Reads the calls of a message by the names of id and name; `arguments` gives the text of their arguments.
pub(super) fn calls(
    list: Option<&Value>,
    [id_field, name_field]: [&str; 2],
    arguments: impl Fn(&Value) -> String,
) -> Result<Vec<ToolCall>, String> {
    let mut calls = Vec::new();
    for call in items(list) {
        let id = text_of(call.get(id_field)).unwrap_or_default();
        let Some(name) = text_of(call.get(name_field)) else { return Err(format!("a call has no `{name_field}`")) };
        let arguments = call.get("arguments").map(&arguments).unwrap_or_default();
        calls.push(ToolCall { id, name, arguments });
    }
    Ok(calls)
}

/// Returns the role of this name.
pub(super) fn role(name: &str) -> Option<Role> {
    match name {
        "developer" => Some(Role::System),
        _ => [Role::System, Role::User, Role::Assistant, Role::Tool].into_iter().find(|role| role.name() == name),
    }
}

/// The question of a file that names none: the last message of the user before the model's first.
pub(in crate::source) fn question(messages: &[Message]) -> Option<String> {
    // What the user says later answers the model.
    let opening = messages.iter().take_while(|message| !message.is_model());
    let asked = opening.filter(|message| message.role == Role::User.name()).last();
    asked.map(|message| message.content.clone())
}

/// The answer of a file that names none: the model's last message, if it calls no tool, or the answer in its tags.
pub(in crate::source) fn prediction(messages: &[Message]) -> String {
    tagged(messages).unwrap_or_else(|| final_text(messages).unwrap_or_default().trim().to_owned())
}

/// What the model's last message, if it calls no tool, has between the last `<answer>` and the `</answer>` after it.
pub(super) fn tagged(messages: &[Message]) -> Option<String> {
    let (_, after) = final_text(messages)?.rsplit_once("<answer>")?;
    Some(after.split_once("</answer>")?.0.trim().to_owned())
}

fn final_text(messages: &[Message]) -> Option<&str> {
    let last = messages.last()?;
    // A rollout that ends with a call was cut off: it has no answer.
    if last.is_model() && last.tool_calls.is_empty() { Some(&last.content) } else { None }
}

/// Definitions of a chat API from functions that stand beside their type, or in such a definition. What a file of
/// `export-trajectories` gives back is known by it.
pub fn definitions_of_chat(tools: Vec<Value>) -> Vec<Value> {
    let definitions = tools.into_iter().map(|tool| match tool {
        Value::Object(mut fields) if !fields.contains_key("function") => {
            fields.remove("type");
            fields.retain(|name, value| !(name == "strict" && value.is_null()));
            serde_json::json!({"type": "function", "function": fields})
        }
        tool => tool,
    });
    definitions.collect()
}

/// Takes a field that holds an object; empty if it does not.
pub(super) fn take_object(fields: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match fields.remove(name) {
        Some(Value::Object(inner)) => inner,
        _ => Map::new(),
    }
}
