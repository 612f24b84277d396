//! Protocol `r1-searcher`: the format of R1-Searcher (RUCAIBox/R1-Searcher, arXiv 2503.05592, at 631167c).
//!
//! The model thinks after `<think>`, which the prompt opens, and searches inside its thoughts with keywords between
//! `<|begin_of_query|>` and `<|end_of_query|>`. The prompt is written anew by the original's rule. Where the original ends a
//! rollout at an empty query, the model reads an error here.

use super::contract::QUESTION;
use super::passage::Passages;
use super::query::QueryForm;
use super::tags::Tags;
use super::text::{TeacherFormat, TextFormat};

/// The format; `plain`: for a base model.
pub(super) fn format(plain: bool) -> TextFormat {
    let (prompt, system) = if plain {
        (format!("{RULES}\n\nUser:{QUESTION}\nAssistant: "), None)
    } else {
        (QUESTION.to_owned(), Some(RULES.to_owned()))
    };
    let search = Tags::new("<|begin_of_query|>", "<|end_of_query|>");
    let result = Tags::new("\n\n<|begin_of_documents|>\n", "<|end_of_documents|>\n\n");
    let each = "({rank}){title}   {text}\n".to_owned();
    TextFormat {
        system,
        prefill: "<think>".to_owned(),
        query: QueryForm::Keywords,
        passages: Passages { each, between: String::new(), none: "None\n".to_owned() },
        stop_at_answer: true,
        teacher: TeacherFormat {
            search: "{thought}{search}".to_owned(),
            answer: "{thought}</think>\n\n{answer}".to_owned(),
        },
        ..TextFormat::new("r1-searcher", prompt, search, result)
    }
}

const RULES: &str = "The User asks a question and the Assistant answers it. The Assistant first reasons about the question \
and then gives the final answer: the reasoning is between <think> and </think>, the final answer between <answer> and \
</answer>, that is, \"<think> the reasoning </think>\n\n<answer> the final answer </answer>\". While it reasons, **the \
Assistant can search** for what it is not sure of, in the form \"<|begin_of_query|> the query (keywords alone, such as \
**\"keyword_1 keyword_2 ...\"**)<|end_of_query|>\". **A query asks for a single triple**. The search system then returns \
what it found in the form \"<|begin_of_documents|> ...the results... <|end_of_documents|>\".";
