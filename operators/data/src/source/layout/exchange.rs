//! Trajectories in the formats of other tools: what their readers share.
//!
//! Files that `export-trajectories` wrote also hold the fields that their format has no place for: those override what a
//! reader finds elsewhere. Files of other programs lack them.

use searchmill_schemas::{Message, Role, ToolCall, Trajectory};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::field::as_text;

/// Returns the object if `export-trajectories` wrote it: the fields of a trajectory.
pub(super) fn own(rest: Option<&Value>) -> Option<&Map<String, Value>> {
    rest?
        .as_object()
        .filter(|rest| ["question_id", "finish_reason", "protocol"].iter().all(|name| rest.contains_key(*name)))
}

/// Completes a trajectory with the fields beside the format, if there are any.
pub(super) fn with_rest(mut made: Trajectory, rest: Option<&Map<String, Value>>) -> Result<Trajectory, String> {
    let Some(rest) = rest else { return Ok(made) };
    let text = |name: &str| rest.get(name).and_then(Value::as_str).map(str::to_owned);
    let parsed = || rest.get("metadata").filter(|value| value.is_object()).map(Value::to_string);
    let metadata = text("metadata_text").or_else(parsed);
    let tools = text("tools_text").unwrap_or_else(|| made.tools.clone());
    let messages = std::mem::take(&mut made.messages);
    let made = overridden(&made, rest, &["messages", "tools", "metadata"])?;
    Ok(Trajectory { messages, tools, metadata, ..made })
}

/// Completes a message with the fields beside the format.
pub(super) fn with_details(message: Message, details: Option<&Value>) -> Result<Message, String> {
    match details.and_then(Value::as_object) {
        Some(details) => overridden(&message, details, &[]),
        None => Ok(message),
    }
}

fn overridden<T: Serialize + DeserializeOwned>(
    made: &T,
    by: &Map<String, Value>,
    except: &[&str],
) -> Result<T, String> {
    let mut value = serde_json::to_value(made).map_err(|error| error.to_string())?;
    if let Some(fields) = value.as_object_mut() {
        for (name, field) in fields {
            if let Some(given) = by.get(name).filter(|_| !except.contains(&name.as_str())) {
                *field = given.clone();
            }
        }
    }
    serde_json::from_value(value).map_err(|error| format!("the fields of searchmill do not fit: {error}"))
}

/// Text, or the texts of a list of parts.
pub(super) fn content(value: Option<&Value>) -> String {
    match value {
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text").and_then(as_text)).collect(),
        value => value.and_then(as_text).unwrap_or_default(),
    }
}

/// A message by the model.
pub(super) fn said(content: String, reasoning: Option<String>, tool_calls: Vec<ToolCall>) -> Message {
    Message { reasoning, tool_calls, ..Message::text(Role::Assistant, content) }
}

/// A result of a tool.
pub(super) fn told(content: String, tool_call_id: Option<String>) -> Message {
    Message { tool_call_id, ..Message::text(Role::Tool, content) }
}

/// Reads the calls of a message by the names of id and name; `arguments` gives the text of their arguments.
pub(super) fn calls(
    list: Option<&Value>,
    [id, name]: [&str; 2],
    arguments: impl Fn(&Value) -> String,
) -> Result<Vec<ToolCall>, String> {
    let call = |call: &Value| {
        let text = |field: &str| call.get(field).and_then(as_text);
        Ok(ToolCall {
            id: text(id).unwrap_or_default(),
            name: text(name).ok_or_else(|| format!("a call has no `{name}`"))?,
            arguments: call.get("arguments").map(&arguments).unwrap_or_default(),
        })
    };
    list.and_then(Value::as_array).into_iter().flatten().map(call).collect()
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
    let opening = messages.iter().take_while(|message| !message.is_model());
    let asked = opening.filter(|message| message.role == Role::User.name()).last();
    asked.map(|message| message.content.clone())
}

/// The answer of a file that names none: the model's last message, if it calls no tool, or the answer in its tags.
pub(in crate::source) fn prediction(messages: &[Message]) -> String {
    let last = final_text(messages).unwrap_or_default();
    tagged(messages).unwrap_or_else(|| last.trim().to_owned())
}

/// What the model's last message, if it calls no tool, has between the last `<answer>` and the `</answer>` after it.
pub(super) fn tagged(messages: &[Message]) -> Option<String> {
    let (_, after) = final_text(messages)?.rsplit_once("<answer>")?;
    Some(after.split_once("</answer>")?.0.trim().to_owned())
}

fn final_text(messages: &[Message]) -> Option<&str> {
    let last = messages.last().filter(|last| last.is_model() && last.tool_calls.is_empty())?;
    Some(last.content.as_str())
}

/// Definitions of a chat API from functions that stand beside their type, or in such a definition. What a file of
/// `export-trajectories` gives back is known by it.
pub fn definitions_of_chat(tools: Vec<Value>) -> Vec<Value> {
    let definition = |tool: Value| match tool {
        Value::Object(mut fields) if !fields.contains_key("function") => {
            fields.remove("type");
            fields.retain(|name, value| !(name == "strict" && value.is_null()));
            serde_json::json!({"type": "function", "function": fields})
        }
        tool => tool,
    };
    tools.into_iter().map(definition).collect()
}

/// Takes a field that holds an object; empty if it does not.
pub(super) fn take_object(fields: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match fields.remove(name) {
        Some(Value::Object(inner)) => inner,
        _ => Map::new(),
    }
}

/// Returns a whole number in an object; 0 if there is none.
pub(super) fn count(fields: &Map<String, Value>, name: &str) -> i64 {
    fields.get(name).and_then(Value::as_i64).unwrap_or_default()
}
