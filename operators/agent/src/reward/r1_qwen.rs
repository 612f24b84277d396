//! R1-Searcher's reward for Qwen (`train/reward_server_qwen_zero.py`).
//!
//! **Published** ([`published`]): the F1 of the predicted answer (0 without both answer tags), minus 2 if the format
//! is broken: the rules of Llama's stage 2, and also the word `Assistant` or `assistant` anywhere, a marker of a query
//! or of documents in the answer, or an answer of more than 10 words. Its faults: a document with the word
//! "assistant", or with a marker, or an empty result, costs the model 2; questions about assistants and golden answers
//! of more than 10 words cannot be answered without the penalty; documents that the model wrote itself count.
//!
//! **Mended** ([`mended`]): the same sum, over all golden answers, with the format of the model's own text. Instead of
//! the word, a line that begins with `Assistant:` or `User:` is punished: a conversation that the model makes up,
//! which is what the rule was for. The limit of 10 words rises to the longest golden answer.

use searchmill_text::answer_metrics::r1_searcher::r1_searcher_f1;
use searchmill_text::normalize::python_trim;

use crate::reward::outcome::Reward;
use crate::reward::pieces::{contains, final_answer};
use crate::reward::r1_text::{
    BASE_MARKER, QWEN_END, even_markers, even_tags, fault, final_f1, first, has_answer_tags, has_chinese,
    mixes_chinese, predicted, query_of, solution, words,
};
use crate::reward::transcript::Transcript;

/// What a broken format costs.
const PENALTY: f64 = -2.0;
/// Words of an answer that cost nothing.
const ANSWER_WORDS: usize = 10;

/// Returns the published reward of a transcript against its first golden answer.
pub fn published(transcript: &Transcript, golden: &[String]) -> Reward {
    published_text(&query_of(transcript, BASE_MARKER), [QWEN_END; 2], first(golden))
}

/// Returns the published reward of the text that the server receives. `ends`: the texts of the padding and the
/// end-of-sequence token.
pub fn published_text(query: &str, ends: [&str; 2], golden: &str) -> Reward {
    let solution = solution(query, BASE_MARKER, ends);
    let predicted = predicted(&solution);
    let f1 = if has_answer_tags(&solution) { r1_searcher_f1(predicted, golden).f1 } else { 0.0 };
    let broken = even_markers(&solution).is_none()
        || !even_tags(&solution)
        || has_chinese(&solution)
        // In most texts, one search rules out both spellings.
        || contains(&solution, "ssistant") && (contains(&solution, "Assistant") || contains(&solution, "assistant"))
        || predicted.contains("begin_of_query")
        || predicted.contains("begin_of_documents")
        || words(predicted) > ANSWER_WORDS;
    Reward::of("f1", f1).and_if(broken, "format", PENALTY)
}

/// Returns the mended reward.
pub fn mended(transcript: &Transcript, golden: &[String]) -> Reward {
    let limit = golden.iter().map(|answer| words(answer)).max().unwrap_or(0).max(ANSWER_WORDS);
    let broken = fault(transcript).is_some()
        || mixes_chinese(transcript, golden)
        || transcript.model_texts().any(makes_up_a_turn)
        || final_answer(transcript).is_some_and(|answer| words(answer) > limit);
    Reward::of("f1", final_f1(transcript, golden).unwrap_or(0.0)).and_if(broken, "format", PENALTY)
}

fn makes_up_a_turn(text: &str) -> bool {
    text.lines().map(python_trim).any(|line| line.starts_with("Assistant:") || line.starts_with("User:"))
}
