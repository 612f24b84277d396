//! OpenAI's chat fine-tuning layout: call ids, arguments as JSON text.

use searchmill_text::json::Json;

use super::conversation::{Conversation, Message, Spoken, Told};
use super::kernel::Converted;

/// Builds the row `{"messages": […], "tools": […]}`.
pub(crate) fn convert(conversation: &Conversation, thinking: bool) -> Converted {
    let messages = conversation.messages.iter().map(|message| entry(message, thinking)).collect();
    let mut row = vec![("messages", Json::List(messages))];
    if !conversation.tools.is_empty() {
        row.push(("tools", Json::List(conversation.tools.clone())));
    }
    Converted { row: object(row), rendered: None }
}

fn object(entries: Vec<(&str, Json)>) -> Json {
    Json::Object(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn entry(message: &Message, thinking: bool) -> Json {
    let said = |role: &str, text: &str| Json::object([("role", Json::text(role)), ("content", Json::text(text))]);
    match message {
        Message::System(text) => said("system", text),
        Message::User(text) => said("user", text),
        Message::Assistant(spoken) => assistant(spoken, thinking),
        Message::Tool(told) => tool(told),
    }
}

fn tool(told: &Told) -> Json {
    let mut entries = vec![("role", Json::text("tool"))];
    entries.extend(told.call_id.as_ref().map(|id| ("tool_call_id", Json::text(id))));
    entries.push(("content", Json::text(&told.content)));
    object(entries)
}

fn assistant(spoken: &Spoken, thinking: bool) -> Json {
    let text = spoken.text(thinking);
    let content = if text.is_empty() && !spoken.calls.is_empty() { Json::Null } else { Json::Text(text) };
    let mut entries = vec![("role", Json::text("assistant")), ("content", content)];
    if !spoken.calls.is_empty() {
        let calls = spoken.calls.iter().map(|call| {
            let arguments = Json::Text(call.arguments.write());
            let function = Json::object([("name", Json::text(&call.name)), ("arguments", arguments)]);
            Json::object([("id", Json::text(&call.id)), ("type", Json::text("function")), ("function", function)])
        });
        entries.push(("tool_calls", Json::List(calls.collect())));
    }
    object(entries)
}
