//! TRL's conversational layout with tools: arguments as objects, tools as a list.

use searchmill_text::json::Json;

use super::conversation::{Conversation, Message, Spoken};
use super::kernel::Converted;

/// Builds the row `{"messages": […], "tools": […]}`.
pub(crate) fn convert(conversation: &Conversation, thinking: bool) -> Converted {
    let messages = conversation.messages.iter().map(|message| entry(message, thinking)).collect();
    let row = Json::object([("messages", Json::List(messages)), ("tools", Json::List(conversation.tools.clone()))]);
    Converted { row, rendered: None }
}

fn entry(message: &Message, thinking: bool) -> Json {
    let said = |role: &str, text: &str| [("role", Json::text(role)), ("content", Json::text(text))];
    match message {
        Message::System(text) => Json::object(said("system", text)),
        Message::User(text) => Json::object(said("user", text)),
        Message::Assistant(spoken) => assistant(spoken, thinking),
        Message::Tool(told) => {
            let [role, content] = said("tool", &told.content);
            let name = told.name.clone().map_or(Json::Null, Json::Text);
            Json::object([role, ("name", name), content])
        }
    }
}

fn assistant(spoken: &Spoken, thinking: bool) -> Json {
    let mut entries = vec![("role", Json::text("assistant")), ("content", Json::text(&spoken.content))];
    if let Some(reasoning) = spoken.reasoning(thinking) {
        entries.push(("reasoning_content", Json::text(reasoning)));
    }
    if !spoken.calls.is_empty() {
        let calls = spoken.calls.iter().map(|call| {
            let function = Json::object([("name", Json::text(&call.name)), ("arguments", call.arguments.clone())]);
            Json::object([("type", Json::text("function")), ("function", function)])
        });
        entries.push(("tool_calls", Json::List(calls.collect())));
    }
    Json::Object(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
