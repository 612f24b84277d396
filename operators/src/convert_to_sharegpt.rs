//! `convert-to-sharegpt`: converts rollouts to the ShareGPT layout for LLaMA-Factory: human or observation alternates
//! with gpt or function_call; system prompt and tools are separate fields.

use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use searchmill_text::json::Json;

use super::shared::conversion::conversation::{Conversation, Message, Spoken};
use super::shared::conversion::kernel::{PORT, chat_converter, converter, ports};
use super::shared::unfit::Unfit;

chat_converter! {
    /// Converts each rollout to a row `{"conversations": […], "system": "…", "tools": "[…]"}` for LLaMA-Factory: human or
    /// observation alternates with gpt or function_call. The layout cannot hold text before a tool call; such text is
    /// dropped. Reasoning, if kept, is in `<think>` tags. Rollouts in which these do not alternate are rejected.
    ConvertToSharegpt, ConvertToSharegptParams, "sharegpt",
    "Converts rollouts to training rows in the ShareGPT layout.",
    ports, kernel
}

#[expect(clippy::unnecessary_wraps, reason = "the other converters may fail")]
fn kernel(params: &ConvertToSharegptParams, _inputs: &Inputs) -> Result<Kernel, OperatorError> {
    let thinking = params.thinking;
    Ok(converter("sharegpt", &params.carry, params.unfinished, move |conversation| {
        Ok((convert(conversation, thinking)?, None))
    }))
}

/// Builds the row `{"conversations": [{"from", "value"}, …], "system": "…", "tools": "[…]"}`.
///
/// The calls of one turn become one `function_call` (an object, or a list if they are parallel). Their results become
/// one `observation`, joined by newlines. The layout cannot hold text before a call: only reasoning in `<think>` tags
/// is kept there (if `thinking` is set).
fn convert(conversation: &Conversation, thinking: bool) -> Result<Json, Unfit> {
    let mut system = String::new();
    let mut turns: Vec<(&str, String)> = Vec::new();
    for message in &conversation.messages {
        match message {
            Message::System(text) => system.push_str(text),
            Message::User(text) => push(&mut turns, "human", text.clone()),
            Message::Tool(result) => push(&mut turns, "observation", result.content.clone()),
            Message::Assistant(spoken) if spoken.calls.is_empty() => push(&mut turns, "gpt", spoken.text(thinking)),
            Message::Assistant(spoken) => push(&mut turns, "function_call", calls(spoken, thinking)),
        }
    }
    let mut conversations = Vec::with_capacity(turns.len());
    for (index, (from, value)) in turns.into_iter().enumerate() {
        // LLaMA-Factory would only log a warning for such a row and skip it.
        if matches!(from, "human" | "observation") != (index % 2 == 0) {
            return Err(Unfit::new("the turns of the model and of the others do not alternate, as the layout demands"));
        }
        conversations.push(Json::object([("from", Json::text(from)), ("value", Json::Text(value))]));
    }
    // The layout lists bare functions, without OpenAI's wrapper `{"type": "function", "function": …}`.
    let tools = conversation.tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone());
    let tools = Json::List(tools.collect()).write();
    Ok(Json::object([
        ("conversations", Json::List(conversations)),
        ("system", Json::Text(system)),
        ("tools", Json::Text(tools)),
    ]))
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
    let mut calls = Vec::with_capacity(spoken.calls.len());
    for call in &spoken.calls {
        calls.push(Json::object([("name", Json::text(&call.name)), ("arguments", call.arguments.clone())]));
    }
    let written = if calls.len() == 1 { calls.remove(0).write() } else { Json::List(calls).write() };
    spoken.thought(thinking).unwrap_or_default() + &written
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use serde_json::json;

    use super::*;
    use crate::shared::conversion::testing::{
        batches_change_nothing, rejects_broken_arguments, rejects_the_unfinished, rows,
    };

    #[test]
    fn turns_alternate_and_tools_are_bare_functions() {
        let row = &rows(&entry::<ConvertToSharegpt>(), json!({}))[0];
        let turns = concat!(
            r#"{"conversations": [{"from": "human", "value": "Question 0, naïve?"}, "#,
            r#"{"from": "function_call", "value": "{\"name\": \"search\", \"arguments\": {\"query\": \"title 0 é\"}}"}, "#,
            r#"{"from": "observation", "value": "Title 0\nAnswer 0 stands here."}, "#,
            r#"{"from": "gpt", "value": "<answer>Answer 0</answer>"}], "system": "Use the search tool.", "#,
            r#""tools": "[{\"name\": \"search\", "#,
        );
        assert!(row.starts_with(turns), "{row}");
        let thinking = &rows(&entry::<ConvertToSharegpt>(), json!({"thinking": true}))[0];
        assert!(thinking.contains(r#""value": "<think>\nI should search.\n</think>\n\n{\"name\""#), "{thinking}");
    }

    #[test]
    fn laws() {
        batches_change_nothing(&entry::<ConvertToSharegpt>());
        rejects_broken_arguments(&entry::<ConvertToSharegpt>());
        rejects_the_unfinished(&entry::<ConvertToSharegpt>());
    }
}
