//! `convert-to-openai`: converts rollouts to OpenAI's chat fine-tuning layout: call ids, arguments as JSON text.

use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use searchmill_text::json::Json;

use super::shared::conversion::conversation::{Message, Spoken};
use super::shared::conversion::kernel::{PORT, chat_converter, converter};
use super::shared::conversion::pairs::{PairRow, Preference, are_pairs, pair_converter, ports};
use super::shared::unfit::Unfit;

chat_converter! {
    /// Converts each rollout to a row `{"messages": […], "tools": […]}` for OpenAI fine-tuning and most trainers: tool
    /// calls have ids, and arguments as JSON text. Reasoning, if kept, is in `<think>` tags before the text.
    ///
    /// Pairs become rows `{"input": {"messages": […], "tools": […]}, "preferred_output": […], "non_preferred_output":
    /// […]}` (OpenAI's guide to direct preference optimization, read in 2026). The input is all messages with which both
    /// conversations begin. OpenAI trains on outputs of one message; Azure OpenAI also takes outputs of several messages
    /// of the model and of tools. Pairs with other messages in an output are rejected.
    ConvertToOpenai, ConvertToOpenaiParams, "openai",
    "Converts rollouts to training rows in OpenAI's chat fine-tuning layout.",
    ports, kernel
}

fn kernel(params: &ConvertToOpenaiParams, inputs: &Inputs) -> Result<Kernel, OperatorError> {
    let thinking = params.thinking;
    if are_pairs(inputs, false)? {
        return Ok(pair_converter("openai", &params.carry, false, params.unfinished, move |preference| {
            pair(preference, thinking)
        }));
    }
    Ok(converter("openai", &params.carry, params.unfinished, move |conversation| {
        Ok((prompt(&conversation.messages, &conversation.tools, thinking), None))
    }))
}

/// Builds the row of a pair.
fn pair(preference: &Preference, thinking: bool) -> Result<Vec<PairRow>, Unfit> {
    let mut outputs = preference.answers().into_iter().flatten();
    if outputs.any(|message| matches!(message, Message::System(_) | Message::User(_))) {
        return Err(Unfit::new("an output may only have messages of the model and of tools"));
    }
    let input = prompt(preference.prompt(), &preference.chosen.tools, thinking);
    let [chosen, rejected] = preference.answers().map(|messages| entries(messages, thinking));
    Ok(vec![Json::object([("input", input), ("preferred_output", chosen), ("non_preferred_output", rejected)]).into()])
}

/// Builds `{"messages": […], "tools": […]}`.
fn prompt(messages: &[Message], tools: &[Json], thinking: bool) -> Json {
    let mut row = vec![("messages", entries(messages, thinking))];
    // OpenAI's API rejects an empty list of tools.
    if !tools.is_empty() {
        row.push(("tools", Json::List(tools.to_vec())));
    }
    Json::object(row)
}

fn entries(messages: &[Message], thinking: bool) -> Json {
    Json::List(messages.iter().map(|message| entry(message, thinking)).collect())
}

fn entry(message: &Message, thinking: bool) -> Json {
    match message {
        Message::System(text) => Json::object([("role", Json::text("system")), ("content", Json::text(text))]),
        Message::User(text) => Json::object([("role", Json::text("user")), ("content", Json::text(text))]),
        Message::Assistant(spoken) => assistant(spoken, thinking),
        Message::Tool(result) => {
            let mut entries = vec![("role", Json::text("tool"))];
            entries.extend(result.call_id.as_ref().map(|id| ("tool_call_id", Json::text(id))));
            entries.push(("content", Json::text(&result.content)));
            Json::object(entries)
        }
    }
}

fn assistant(spoken: &Spoken, thinking: bool) -> Json {
    let text = spoken.text(thinking);
    // OpenAI's API writes a message of calls alone with `content: null`.
    let content = if text.is_empty() && !spoken.calls.is_empty() { Json::Null } else { Json::Text(text) };
    let mut entries = vec![("role", Json::text("assistant")), ("content", content)];
    if !spoken.calls.is_empty() {
        let mut calls = Vec::with_capacity(spoken.calls.len());
        for call in &spoken.calls {
            let arguments = Json::Text(call.arguments.write());
            let function = Json::object([("name", Json::text(&call.name)), ("arguments", arguments)]);
            let (id, kind) = (Json::text(&call.id), Json::text("function"));
            calls.push(Json::object([("id", id), ("type", kind), ("function", function)]));
        }
        entries.push(("tool_calls", Json::List(calls)));
    }
    Json::object(entries)
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
    fn calls_have_ids_and_arguments_as_text() {
        let row = &rows(&entry::<ConvertToOpenai>(), json!({}))[0];
        let call = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "search", "arguments": "{\"query\": \"title 0 é\"}"}}]}"#;
        assert!(row.contains(call), "{row}");
        assert!(
            row.contains(r#"{"role": "tool", "tool_call_id": "call_0", "content": "Title 0\nAnswer 0 stands here."}"#)
        );
        let thinking = &rows(&entry::<ConvertToOpenai>(), json!({"thinking": true}))[0];
        assert!(
            thinking.contains(r#""content": "<think>\nI should search.\n</think>\n\n", "tool_calls""#),
            "{thinking}"
        );
    }

    #[test]
    fn laws() {
        batches_change_nothing(&entry::<ConvertToOpenai>());
        rejects_broken_arguments(&entry::<ConvertToOpenai>());
        rejects_the_unfinished(&entry::<ConvertToOpenai>());
    }
}
