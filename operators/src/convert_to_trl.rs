//! `convert-to-trl`: converts rollouts to TRL's conversational layout: arguments as objects, tools as a list.

use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use searchmill_text::json::Json;

use crate::conversion::conversation::{Conversation, Message, Spoken};
use crate::conversion::kernel::{chat_converter, converter, ports};

chat_converter! {
    /// Converts each rollout to a row `{"messages": […], "tools": […]}` for TRL's trainers and chat templates: tool-call
    /// arguments are objects, tools are a list. Reasoning, if kept, is in `reasoning_content`. The model's chat template
    /// renders the text.
    ConvertToTrl, ConvertToTrlParams, "trl",
    "Converts rollouts to training rows in TRL's conversational layout.",
    convert
}

/// Builds the row `{"messages": […], "tools": […]}`.
fn convert(conversation: &Conversation, thinking: bool) -> Json {
    let messages = conversation.messages.iter().map(|message| entry(message, thinking)).collect();
    Json::object([("messages", Json::List(messages)), ("tools", Json::List(conversation.tools.clone()))])
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
    Json::object(entries)
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use serde_json::json;

    use super::*;
    use crate::conversion::testing::{batches_change_nothing, rejects_broken_arguments, rows};

    #[test]
    fn calls_are_objects_and_tools_a_list() {
        let row = &rows(&entry::<ConvertToTrl>(), json!({"thinking": true}))[0];
        let call = r#"{"role": "assistant", "content": "", "reasoning_content": "I should search.", "tool_calls": [{"type": "function", "function": {"name": "search", "arguments": {"query": "title 0 é"}}}]}"#;
        assert!(row.contains(call), "{row}");
        assert!(row.contains(r#"{"role": "tool", "name": "search", "content": "Title 0\nAnswer 0 stands here."}"#));
        assert!(row.contains(r#""tools": [{"type": "function", "function": {"name": "search", "#));
        assert!(!rows(&entry::<ConvertToTrl>(), json!({}))[0].contains("reasoning"));
    }

    #[test]
    fn laws() {
        batches_change_nothing(&entry::<ConvertToTrl>());
        rejects_broken_arguments(&entry::<ConvertToTrl>());
    }
}
