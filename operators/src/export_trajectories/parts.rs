//! What the formats share: parsed tools and arguments, and the fields that a format has no place for.
//!
//! `searchmill_data::source::layout` reads the files back: what [`rest`] and [`details`] hold overrides what it finds
//! in the fields of the format.

use searchmill_schemas::{Message, Role, ToolCall, Trajectory};
use serde_json::{Map, Value, json};

/// Returns an object without the entries that are null or an empty object; lists and `arguments` stay.
pub(super) fn filled<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let mut object = Map::new();
    for (name, value) in entries {
        // A call without arguments has an empty object of them.
        if name == "arguments" || !(value.is_null() || value.as_object().is_some_and(Map::is_empty)) {
            object.insert(name.to_owned(), value);
        }
    }
    Value::Object(object)
}

/// Returns the tool definitions; none if the text is not a list of objects.
pub(super) fn tools(trajectory: &Trajectory) -> Option<Vec<Value>> {
    let tools: Vec<Map<String, Value>> = serde_json::from_str(&trajectory.tools).ok()?;
    Some(tools.into_iter().map(Value::Object).collect())
}

/// Returns a tool whose type stands beside its function: the inner object of a definition, or the definition itself.
pub(super) fn tool(definition: &Value) -> Value {
    let mut tool = definition.get("function").filter(|inner| inner.is_object()).unwrap_or(definition).clone();
    tool["type"] = json!("function");
    tool
}

/// Returns the arguments of a call as an object; none if they are something else.
pub(super) fn arguments(call: &ToolCall) -> Option<Map<String, Value>> {
    serde_json::from_str(&call.arguments).ok()
}

/// Whether the object of the arguments gives their text back.
pub(super) fn is_exact(call: &ToolCall) -> bool {
    arguments(call).is_some_and(|parsed| gives_back(&Value::Object(parsed), &call.arguments))
}

/// Whether JSON that is written again is the text that it was read from.
fn gives_back(parsed: &Value, text: &str) -> bool {
    // Equal values may have other spaces, escapes or forms of numbers, so the texts are compared.
    let written = parsed.to_string();
    written == text
}

/// Returns the call that a tool message answers, among those of the model's last message before it.
pub(super) fn answered<'a>(message: &Message, before: &'a [Message]) -> Option<&'a ToolCall> {
    if message.role != Role::Tool.name() {
        return None;
    }
    let id = message.tool_call_id.as_ref()?;
    let said = before.iter().rev().find(|message| message.is_model())?;
    said.tool_calls.iter().find(|call| call.id == *id)
}

/// Whether a message of a tool answers no call: in protocols without calls, the tool's text simply comes next. A format
/// that has only results of calls writes it as a message of the user.
pub(super) fn answers_nothing(index: usize, messages: &[Message]) -> bool {
    messages[index].role == Role::Tool.name() && answered(&messages[index], &messages[..index]).is_none()
}

/// Returns what a format loses that has only results of calls: for each message, the fields that it cannot write.
pub(super) fn lost(messages: &[Message]) -> Value {
    let mut lost = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let mut written = vec!["content", "reasoning", "tool_calls"];
        if !answers_nothing(index, messages) {
            written.push("role");
        }
        if answered(message, &messages[..index]).is_some() {
            written.push("tool_call_id");
        }
        lost.push(Value::Object(details(message, &written)));
    }
    Value::Array(lost)
}

/// Returns the filled fields of a message, except those that the format has written.
pub(super) fn details(message: &Message, written: &[&str]) -> Map<String, Value> {
    let Value::Object(mut fields) = json!(message) else { return Map::new() };
    fields.retain(|name, value| {
        let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        !is_empty && !written.contains(&name.as_str())
    });
    fields
}

/// Returns all fields of a trajectory but its messages and tools, with the metadata as an object. `tools_text` and
/// `metadata_text` are the texts where parsed JSON does not give them back; `tools` is what a reader makes of the format.
pub(super) fn rest(trajectory: &Trajectory, tools: Option<Vec<Value>>) -> Map<String, Value> {
    let Value::Object(mut fields) = json!(trajectory) else { return Map::new() };
    fields.remove("messages");
    fields.remove("tools");
    // Readers take the text where the format's JSON would not give it back, letter for letter.
    if tools.is_none_or(|tools| !gives_back(&Value::Array(tools), &trajectory.tools)) {
        fields.insert("tools_text".to_owned(), json!(trajectory.tools));
    }
    if let Some(text) = &trajectory.metadata {
        let parsed = serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
        if parsed.as_ref().is_none_or(|parsed| !gives_back(parsed, text)) {
            fields.insert("metadata_text".to_owned(), json!(text));
        }
        fields.insert("metadata".to_owned(), parsed.unwrap_or_default());
    }
    fields
}
