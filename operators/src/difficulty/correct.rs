//! When a sample counts as correct.

use schemars::JsonSchema;
use searchmill_engine::operator::ParamIssue;
use searchmill_text::answer_metrics::answer_scores;
use searchmill_text::answer_metrics::r1_searcher::{self, r1_searcher_scores};
use searchmill_text::normalize::normalize_answer;
use serde::{Deserialize, Serialize};

use crate::shared::unfit::Unfit;

/// When a sample counts as correct; one golden answer is enough.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Correct {
    /// Every word of the golden answer is a word of the prediction: R1-Searcher's `cover_exact_match_1`, with its
    /// normaliser.
    #[default]
    CoverEm,
    /// The normalised texts are equal (FlashRAG's exact match).
    Em,
    /// Token F1 (FlashRAG's) of at least this number, above 0 and at most 1.
    F1(f64),
}

impl Correct {
    /// Whether the prediction is correct.
    pub(crate) fn judge(&self, prediction: &str, golden: &[String]) -> bool {
        match self {
            Self::CoverEm => r1_searcher_scores(prediction, golden).cover_em_1 >= 1.0,
            Self::Em => answer_scores(prediction, golden).em >= 1.0,
            Self::F1(least) => answer_scores(prediction, golden).f1 >= *least,
        }
    }

    /// Fails if golden answers are given, but nothing of them is left after normalisation: an empty prediction would be
    /// correct.
    pub(crate) fn require_texts(&self, golden: &[String]) -> Result<(), Unfit> {
        let are_empty = golden.iter().all(|answer| match self {
            Self::CoverEm => r1_searcher::normalize(answer).is_empty(),
            Self::Em | Self::F1(_) => normalize_answer(answer).is_empty(),
        });
        // Samples without golden answers are counted as unjudged; they are no rejects.
        if are_empty && !golden.is_empty() { Err(Unfit::of_empty_answers(golden)) } else { Ok(()) }
    }

    pub(crate) fn issue(&self) -> Option<ParamIssue> {
        match self {
            Self::F1(least) if !(*least > 0.0 && *least <= 1.0) => {
                Some(ParamIssue::new("correct.f1", format!("must be above 0 and at most 1, found {least}")))
            }
            _ => None,
        }
    }
}
