//! Protocol `research`: the format of ReSearch (Agent-RL/ReSearch, arXiv 2503.19470, branch `re-search` at 4bdb872).
//!
//! The model thinks in `<think>`, searches with `<search>`, reads `<result>`, and answers in `\boxed{}` between
//! `<answer>` and `</answer>`. The prompt is written anew by the original's rule. The original searches for the empty text
//! if a query is missing; here, the model reads an error.

use super::contract::QUESTION;
use super::passage::Passages;
use super::tags::Tags;
use super::text::{TeacherFormat, TextFormat};

/// The format; `plain`: for a base model.
pub(super) fn format(plain: bool) -> TextFormat {
    let (prompt, system) = if plain {
        (format!("{RULES} User: {QUESTION}. Assistant:"), None)
    } else {
        (QUESTION.to_owned(), Some(RULES))
    };
    let (search, result) = (Tags::new("<search>", "</search>"), Tags::new(" <result>\n", "\n</result>"));
    TextFormat {
        system: system.map(str::to_owned),
        passages: Passages { each: "{contents}".to_owned(), ..Passages::default() },
        boxed: true,
        teacher: TeacherFormat {
            search: "<think>{thought}</think> {search}".to_owned(),
            answer: "<think>{thought}</think> {answer}".to_owned(),
        },
        ..TextFormat::new("research", prompt, search, result)
    }
}

const RULES: &str = "You solve questions step by step and may use a search tool over Wikipedia. Think about the question \
first, then answer it. Whenever a fact is missing while you think, search for it. Put your reasoning between <think> and \
</think>, a query between <search> and </search>, and your answer between <answer> and </answer>; the passages that a \
search finds are put between <result> and </result>. So a solution reads: <think> what you reason </think> <search> what \
you look for </search> <result> what was found </result> <think> what you conclude </think> <answer> The final answer is \
\\[ \\boxed{the answer} \\] </answer>. The answer ends with the exact final answer in LaTeX, inside \\boxed{}.";
