//! ms-swift's agent layout: roles system, user, assistant, tool_call, tool_response; tools as a JSON text.

use searchmill_text::json::Json;

use super::conversation::{Conversation, Message, Spoken, Unfit};
use super::hermes::{Template, render};
use super::kernel::Converted;

/// Builds the row `{"tools": "[…]", "messages": […]}` and its Hermes rendering.
pub(crate) fn convert(conversation: &Conversation, thinking: bool, template: Template) -> Result<Converted, Unfit> {
    let mut messages = Vec::new();
    for message in &conversation.messages {
        match message {
            Message::System(text) => messages.push(entry("system", text.clone())),
            Message::User(text) => messages.push(entry("user", text.clone())),
            Message::Tool(told) => messages.push(entry("tool_response", told.content.clone())),
            Message::Assistant(spoken) => push_spoken(spoken, thinking, &mut messages),
        }
    }
    let rendered = render(&messages, &conversation.tools, template).map_err(Unfit::new)?;
    Ok(Converted { row: row(&conversation.tools, messages), rendered: Some(rendered) })
}

/// Builds the row. Omits an empty `tools`: ms-swift would render an empty tool list.
fn row(tools: &[Json], messages: Vec<Json>) -> Json {
    let messages = Json::List(messages);
    if tools.is_empty() {
        return Json::object([("messages", messages)]);
    }
    Json::object([("tools", Json::Text(Json::List(tools.to_vec()).write())), ("messages", messages)])
}

fn entry(role: &str, content: String) -> Json {
    Json::object([("role", Json::text(role)), ("content", Json::Text(content))])
}

/// Adds the text, then each call. Qwen's chat template, used for serving, puts a newline between text and call;
/// ms-swift adds none, so the newline is part of the text. Text that already ends with a newline is unchanged:
/// servers that cut calls out of an answer leave it there.
fn push_spoken(spoken: &Spoken, thinking: bool, messages: &mut Vec<Json>) {
    let mut text = spoken.text(thinking);
    if !text.trim().is_empty() {
        if !spoken.calls.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        messages.push(entry("assistant", text));
    }
    for call in &spoken.calls {
        let content = Json::object([("name", Json::text(&call.name)), ("arguments", call.arguments.clone())]);
        messages.push(entry("tool_call", content.write()));
    }
}
