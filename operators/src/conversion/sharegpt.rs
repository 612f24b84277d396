//! ShareGPT layout for LLaMA-Factory: human or observation alternates with gpt or function_call; system prompt and
//! tools are separate fields.

use searchmill_text::json::Json;

use super::conversation::{Conversation, Message, Spoken, Unfit};
use super::kernel::Converted;

/// Builds the row `{"conversations": [{"from", "value"}, …], "system": "…", "tools": "[…]"}`.
///
/// The calls of one turn become one `function_call` (an object, or a list if they are parallel). Their results become
/// one `observation`, joined by newlines. The layout cannot hold text before a call: only reasoning in `<think>` tags
/// is kept there (if `thinking` is set).
pub(crate) fn convert(conversation: &Conversation, thinking: bool) -> Result<Converted, Unfit> {
    let mut system = String::new();
    let mut turns: Vec<(&str, String)> = Vec::new();
    for message in &conversation.messages {
        match message {
            Message::System(text) => system.push_str(text),
            Message::User(text) => push(&mut turns, "human", text.clone()),
            Message::Tool(told) => push(&mut turns, "observation", told.content.clone()),
            Message::Assistant(spoken) if spoken.calls.is_empty() => push(&mut turns, "gpt", spoken.text(thinking)),
            Message::Assistant(spoken) => push(&mut turns, "function_call", calls(spoken, thinking)),
        }
    }
    let asks = |from: &str| matches!(from, "human" | "observation");
    if turns.iter().enumerate().any(|(place, (from, _))| asks(from) != (place % 2 == 0)) {
        return Err(Unfit::new("the turns of the model and of the others do not alternate, as the layout demands"));
    }
    let turn = |(from, value): (&str, String)| Json::object([("from", Json::text(from)), ("value", Json::Text(value))]);
    let conversations = Json::List(turns.into_iter().map(turn).collect());
    let tools =
        Json::List(conversation.tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone()).collect());
    let row = [("conversations", conversations), ("system", Json::Text(system)), ("tools", Json::Text(tools.write()))];
    Ok(Converted { row: Json::object(row), rendered: None })
}

/// Adds a turn; merges consecutive observations.
fn push(turns: &mut Vec<(&'static str, String)>, from: &'static str, value: String) {
    match turns.last_mut() {
        Some((last, text)) if *last == from && from == "observation" => {
            text.push('\n');
            text.push_str(&value);
        }
        _ => turns.push((from, value)),
    }
}

fn calls(spoken: &Spoken, thinking: bool) -> String {
    let call =
        |name: &str, arguments: &Json| Json::object([("name", Json::text(name)), ("arguments", arguments.clone())]);
    let mut listed: Vec<Json> = spoken.calls.iter().map(|one| call(&one.name, &one.arguments)).collect();
    let written = if listed.len() == 1 { listed.remove(0).write() } else { Json::List(listed).write() };
    match spoken.reasoning(thinking) {
        Some(reasoning) => format!("<think>\n{}\n</think>\n\n{written}", reasoning.trim_matches('\n')),
        None => written,
    }
}
