//! Search-R1's reward of version 0.3 (`verl/utils/reward_score/qa_em_format.py` at a14dc3a).
//!
//! **Published** ([`published`]): a right answer earns 1 in the format and 0.8 outside; a wrong one 0.2 in the format
//! (and the retrieval score if a golden answer is a substring of a result) and 0.1 outside. The format is the
//! sequence think, search, information, …, answer with only white space between. It has the faults of version 0.2,
//! and: an end-of-turn token after the answer, or a result that was cut before `</information>`, breaks the format;
//! `<information>` written by the model counts as a result.
//!
//! **Mended** ([`mended`]): the same values by the model's own text. A response without an answer earns nothing;
//! results are what the environment wrote, and hold an answer only as whole words and not one like `yes`.

use schemars::JsonSchema;
use searchmill_text::normalize::{normalize_answer, python_trim};
use serde::{Deserialize, Serialize};

use crate::reward::outcome::Reward;
use crate::reward::pieces::{final_answer, pairs, retrieved};
use crate::reward::search_r1_em::published_answer;
use crate::reward::search_r1_text::{Agreement, fault, is_sequence};
use crate::reward::transcript::Transcript;

/// Marker of the assistant's turn in Qwen's chat template.
const CHAT_MARKER: &str = "<|im_start|>assistant";

/// Scores of the parts (`structure_format_score`, `final_format_score` and `retrieval_score` in the original).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct FormatScores {
    /// A wrong answer in the format; what a right one loses outside.
    pub structure: f64,
    /// A wrong answer outside the format.
    pub answer: f64,
    /// What a wrong answer in the format earns more after a search found the right one.
    pub retrieval: f64,
}

impl Default for FormatScores {
    /// The values of the repository's scripts.
    fn default() -> Self {
        Self { structure: 0.2, answer: 0.1, retrieval: 0.0 }
    }
}

impl FormatScores {
    fn reward(&self, answer: Option<&str>, golden: &[String], formatted: bool, retrieved: bool) -> Reward {
        let right = answer.is_some_and(|answer| Agreement::Exact.holds(answer, golden));
        match (right, formatted) {
            (true, formatted) => Reward::of("answer", 1.0).and_if(!formatted, "format", -self.structure),
            (false, true) => Reward::of("format", self.structure).and_if(retrieved, "retrieval", self.retrieval),
            (false, false) => Reward::default().and_if(answer.is_some(), "answer_tags", self.answer),
        }
    }
}

/// Returns the published reward of a transcript in Qwen's chat template. The original's responses end with
/// `</answer>`, without an end-of-turn token, and so do ours.
pub fn published(transcript: &Transcript, scores: &FormatScores, golden: &[String]) -> Reward {
    let text = format!("{}\n{CHAT_MARKER}\n{}", transcript.prompt, transcript.response());
    published_text(&text, scores, golden)
}

/// Returns the published reward of prompt and response as one decoded text.
pub fn published_text(text: &str, scores: &FormatScores, golden: &[String]) -> Reward {
    let formatted = is_formatted(text);
    // Without a score for it, all results would be normalised in vain.
    let retrieved = scores.retrieval != 0.0 && formatted && shows_answer(text, golden);
    scores.reward(published_answer(text), golden, formatted, retrieved)
}

/// Whether what follows the first marker of the assistant's turn is in the format.
pub(super) fn is_formatted(text: &str) -> bool {
    text.split_once(CHAT_MARKER).is_some_and(|(_, response)| is_sequence(response))
}

/// Whether a golden answer is a substring of an `<information>` block, both normalised.
fn shows_answer(text: &str, golden: &[String]) -> bool {
    let golden: Vec<String> = golden.iter().map(|answer| normalize_answer(answer)).collect();
    pairs(text, "<information>", "</information>").into_iter().any(|block| {
        let block = normalize_answer(python_trim(block));
        golden.iter().any(|answer| block.contains(answer.as_str()))
    })
}

/// Returns the mended reward.
pub fn mended(transcript: &Transcript, scores: &FormatScores, golden: &[String]) -> Reward {
    let retrieved = scores.retrieval != 0.0 && retrieved(transcript, golden);
    scores.reward(final_answer(transcript), golden, fault(transcript).is_none(), retrieved)
}
