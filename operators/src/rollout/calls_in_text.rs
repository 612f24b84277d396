//! Tool calls that a server left in the text of an answer: it has no parser for them, so no tool is ever called.

use std::sync::atomic::{AtomicU64, Ordering};

use searchmill_engine::operator::Context;
use searchmill_schemas::{Message, Trajectory};
use searchmill_text::thoughts;

/// How models begin a call (Qwen, Hermes, Mistral, Llama, DeepSeek, GLM, Kimi, MiniMax, gpt-oss and others).
const MARKS: [&str; 12] = [
    "<tool_call>",
    "<tool_calls>",
    "<|tool_call",
    "<|tool▁call",
    "<｜tool▁call",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<function=",
    "<function_call>",
    "<invoke name=",
    "<|action_start|>",
    "<|channel|>commentary to=",
];

const HELP: &str = "start the server with a parser for them (vLLM: `--enable-auto-tool-choice --tool-call-parser NAME`, \
                    SGLang: `--tool-call-parser NAME`, llama.cpp: `--jinja`), or use a text protocol, such as \
                    `protocol: tool-tags`";

/// The rollouts of this run whose answers hold tool calls as text.
#[derive(Default)]
pub(super) struct CallsInText {
    rollouts: AtomicU64,
    holding: AtomicU64,
}

impl CallsInText {
    /// Counts a rollout, and warns at the first one: the rest is being paid for.
    pub(super) fn count(&self, rollout: &Trajectory, context: &Context) {
        self.rollouts.fetch_add(1, Ordering::Relaxed);
        if !rollout.messages.iter().any(holds_call) {
            return;
        }
        if self.holding.fetch_add(1, Ordering::Relaxed) == 0 {
            let id = &rollout.id;
            context.progress().log(&format!("warning: an answer of `{id}` holds a tool call as text: {HELP}"));
        }
    }

    /// Returns a warning if there are such rollouts.
    pub(super) fn warning(&self) -> Option<String> {
        let (rollouts, holding) = (self.rollouts.load(Ordering::Relaxed), self.holding.load(Ordering::Relaxed));
        (holding > 0).then(|| format!("warning: {holding} of {rollouts} rollouts hold tool calls as text: {HELP}"))
    }
}

/// Whether an answer without a call holds one in its text.
pub(super) fn holds_call(message: &Message) -> bool {
    // A server that parsed one call has a parser.
    if message.role != "assistant" || !message.tool_calls.is_empty() {
        return false;
    }
    // In its thoughts, a model may quote the syntax of a call.
    thoughts::split(&message.content).said.into_iter().any(|text| {
        let has_arguments = text.contains("\"arguments\"") || text.contains("\"parameters\"");
        MARKS.iter().any(|mark| text.contains(mark)) || has_arguments && text.contains("\"name\"")
    })
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::{Role, ToolCall};

    use super::*;

    #[test]
    fn calls_are_known_in_the_forms_of_models() {
        let said = |text: &str| Message::text(Role::Assistant, text);
        for text in [
            "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"q\"}}\n</tool_call>",
            "[TOOL_CALLS] [{\"name\": \"search\"}]",
            "<think>hm</think><function=search>{}</function>",
            "{\"name\": \"search\", \"parameters\": {\"query\": \"q\"}}",
        ] {
            assert!(holds_call(&said(text)), "{text}");
        }
        for text in ["<answer>Rome</answer>", "<think><tool_call></think>Rome", "The \"name\" of the city is Rome"] {
            assert!(!holds_call(&said(text)), "{text}");
        }
        let called = ToolCall { id: "a".to_owned(), name: "search".to_owned(), arguments: "{}".to_owned() };
        assert!(!holds_call(&Message { tool_calls: vec![called], ..said("<tool_call>") }));
    }
}
