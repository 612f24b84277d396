//! `convert-to-trl`: converts rollouts to TRL's conversational layout: arguments as objects, tools as a list.

use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use searchmill_text::json::Json;

use super::shared::conversion::conversation::{Conversation, Message, Spoken};
use super::shared::conversion::kernel::{PORT, chat_converter, converter};
use super::shared::conversion::pairs::{PairRow, Preference, are_pairs, pair_converter, ports};

chat_converter! {
    /// Converts each rollout to a row `{"messages": […], "tools": […]}` for TRL's trainers and chat templates: tool-call
    /// arguments are objects, tools are a list. Reasoning, if kept, is in `reasoning_content`. The model's chat template
    /// renders the text.
    ///
    /// Pairs become rows `{"prompt": […], "chosen": […], "rejected": […], "tools": […]}` for DPO and reward models, or,
    /// with `unpaired`, two rows `{"prompt": […], "completion": […], "label": …, "tools": […]}` for KTO (the conversational
    /// preference formats in the docs of TRL 0.17 and later). The prompt is all messages with which both conversations
    /// begin. Search results after it belong to the completions.
    ConvertToTrl, ConvertToTrlParams, "trl",
    "Converts rollouts to training rows in TRL's conversational layout.",
    ports, kernel, unpaired
}

fn kernel(params: &ConvertToTrlParams, inputs: &Inputs) -> Result<Kernel, OperatorError> {
    let ConvertToTrlParams { thinking, unpaired, unfinished, ref carry } = *params;
    if are_pairs(inputs, unpaired)? {
        return Ok(pair_converter("trl", carry, unpaired, unfinished, move |preference| {
            Ok(pair(preference, thinking, unpaired).into_iter().map(PairRow::from).collect())
        }));
    }
    Ok(converter("trl", carry, unfinished, move |conversation| Ok((convert(conversation, thinking), None))))
}

/// Builds the row `{"messages": […], "tools": […]}`.
fn convert(conversation: &Conversation, thinking: bool) -> Json {
    let messages = entries(&conversation.messages, thinking);
    Json::object([("messages", messages), ("tools", Json::List(conversation.tools.clone()))])
}

/// Builds the row of a pair, or a row with a label for each conversation.
fn pair(preference: &Preference, thinking: bool, unpaired: bool) -> Vec<Json> {
    let prompt = ("prompt", entries(preference.prompt(), thinking));
    let tools = ("tools", Json::List(preference.chosen.tools.clone()));
    let [chosen, rejected] = preference.answers().map(|messages| entries(messages, thinking));
    if !unpaired {
        return vec![Json::object([prompt, ("chosen", chosen), ("rejected", rejected), tools])];
    }
    let mut rows = Vec::new();
    for (completion, label) in [(chosen, true), (rejected, false)] {
        let label = ("label", Json::Bool(label));
        rows.push(Json::object([prompt.clone(), ("completion", completion), label, tools.clone()]));
    }
    rows
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
            let name = result.name.clone().map_or(Json::Null, Json::Text);
            Json::object([("role", Json::text("tool")), ("name", name), ("content", Json::text(&result.content))])
        }
    }
}

fn assistant(spoken: &Spoken, thinking: bool) -> Json {
    let mut entries = vec![("role", Json::text("assistant")), ("content", Json::text(&spoken.content))];
    if let Some(reasoning) = spoken.reasoning(thinking) {
        entries.push(("reasoning_content", Json::text(reasoning)));
    }
    if !spoken.calls.is_empty() {
        let mut calls = Vec::with_capacity(spoken.calls.len());
        for call in &spoken.calls {
            // Chat templates apply `tojson` to the arguments: a text would be quoted twice.
            let function = Json::object([("name", Json::text(&call.name)), ("arguments", call.arguments.clone())]);
            calls.push(Json::object([("type", Json::text("function")), ("function", function)]));
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
        rejects_the_unfinished(&entry::<ConvertToTrl>());
    }
}
