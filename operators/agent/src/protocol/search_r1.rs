//! Protocol `search-r1`: the format of Search-R1 (PeterGriffinJin/Search-R1, arXiv 2503.09516, at a14dc3a).
//!
//! One user message; the model thinks in `<think>`, searches with `<search>`, reads `<information>`, and answers between
//! `<answer>` and `</answer>`. A message with neither is answered with a remark, and the model goes on. The prompt is written
//! anew by the original's rule; unlike the original's, it contains no example answer that a reward could take for the model's.

use super::contract::QUESTION;
use super::passage::Passages;
use super::tags::Tags;
use super::text::TextFormat;

/// The format. The original has one prompt, which the chat template wraps.
pub(super) fn format() -> TextFormat {
    let (search, result) = (Tags::new("<search>", "</search>"), Tags::new("\n\n<information>", "</information>\n\n"));
    let each = "Doc {rank}(Title: {title}) {text}".to_owned();
    TextFormat {
        passages: Passages { each, between: "\n".to_owned(), none: String::new() },
        stop_at_answer: true,
        invalid: Some(INVALID.to_owned()),
        ..TextFormat::new("search-r1", format!("{RULES} Question: {QUESTION}\n"), search, result)
    }
}

const RULES: &str = "Answer the question below. Reason between <think> and </think> first, and again each time you get new \
information. If your reasoning shows that you lack some knowledge, call a search engine with <search> query </search>; it \
returns its top results between <information> and </information>. Search as often as you like. Once you need nothing more, \
give the answer alone between <answer> and </answer>, without explanations.";

const INVALID: &str = "\nMy last action is not valid. To search, I put the query between <search> and </search>. To give the \
final answer, I put it between <answer> and </answer>. I try again.\n";
