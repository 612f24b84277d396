//! Protocol `tool-tags`: the format of a Search-R1 reproduction with verl's search tool (Qwen2.5-3B-Instruct, GRPO).
//!
//! The model thinks in `<think>`, calls the tool with `<tool_call>`, reads `<tool_response>`, and answers between `<answer>`
//! and `</answer>`. A call is the JSON of verl's tool (`query_list`) or the query alone: the original's prompt asks for the
//! one and its schema for the other. The prompt is written anew by the original's rule.

use super::contract::QUESTION;
use super::passage::Passages;
use super::query::QueryForm;
use super::tags::Tags;
use super::text::TextFormat;

/// The format.
pub(super) fn format() -> TextFormat {
    let search = Tags::new("<tool_call>", "</tool_call>");
    let result = Tags::new("\n<tool_response>\n", "\n</tool_response>\n");
    TextFormat {
        system: Some("You are a helpful and harmless assistant.".to_owned()),
        query: QueryForm::Call,
        passages: Passages { each: "Doc {rank} (Title: {title})\n{text}".to_owned(), ..Passages::default() },
        stop_at_answer: true,
        ..TextFormat::new("tool-tags", format!("{RULES} Question: {QUESTION}\n"), search, result)
    }
}

const RULES: &str = "Answer the question below. Reason between <think> and </think> first, and again each time you get new \
information. If your reasoning shows that you lack some knowledge, call the search engine with <tool_call> {\"name\": \
\"search\", \"arguments\": {\"query_list\": [\"query\"]}} </tool_call>; it returns its top results between <tool_response> and \
</tool_response>. Search as often as you like. Once you need nothing more, give the answer alone between <answer> and \
</answer>, without explanations.";
