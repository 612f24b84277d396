//! FlashRAG's answer metrics: exact match, token F1, precision, recall and substring accuracy of one prediction. The
//! metrics of other systems are in a module each.
//!
//! Most of them normalise with [`normalize_answer`] (SQuAD); R1-Searcher has its own normaliser. They differ in the
//! guard for `yes` and `no`, in what empty texts score, and in the maximum over several golden answers.
//!
//! Source: FlashRAG `flashrag/evaluator/metrics.py` at 1ee5249 (`ExactMatch`, `Sub_ExactMatch`, `F1_Score`,
//! `Precision_Score`, `Recall_Score`). Each metric takes its own maximum over the golden answers.

#[cfg(test)]
mod golden_rows;
pub mod hotpot;
pub mod kilt;
pub mod longbench;
pub mod musique;
mod overlap;
pub mod r1_searcher;
mod rouge_l;
pub mod searchlm;

pub use overlap::TokenScores;
pub use rouge_l::rouge_l;

use crate::normalize::normalize_answer;

/// The five metrics of one prediction, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnswerScores {
    /// Exact match: the normalised texts are equal.
    pub em: f64,
    /// Harmonic mean of token precision and recall.
    pub f1: f64,
    /// The normalised golden answer is a substring of the normalised prediction (characters, not words).
    pub acc: f64,
    /// Shared tokens over the prediction's tokens.
    pub precision: f64,
    /// Shared tokens over the golden answer's tokens.
    pub recall: f64,
}

/// Scores a prediction against its golden answers.
///
/// A normalised `yes`, `no` or `noanswer` shares no tokens with any other text. Without golden answers every score is
/// 0. `em` can be 1 while `f1` is 0: if both sides normalise to the empty text.
///
/// ```
/// use searchmill_text::answer_metrics::answer_scores;
/// let scores = answer_scores("Taylor Swift", &["Swift".to_owned(), "Taylor Alison Swift".to_owned()]);
/// assert_eq!((scores.em, scores.f1, scores.recall), (0.0, 0.8, 1.0));
/// ```
pub fn answer_scores(prediction: &str, golden: &[String]) -> AnswerScores {
    let prediction = normalize_answer(prediction);
    let mut best = AnswerScores::default();
    for answer in golden {
        let scores = score_normalized(&prediction, &normalize_answer(answer));
        (best.em, best.f1, best.acc) = (best.em.max(scores.em), best.f1.max(scores.f1), best.acc.max(scores.acc));
        best.precision = best.precision.max(scores.precision);
        best.recall = best.recall.max(scores.recall);
    }
    best
}

/// Scores a normalised prediction against one normalised golden answer.
pub(crate) fn score_normalized(prediction: &str, golden: &str) -> AnswerScores {
    let equal = prediction == golden;
    let TokenScores { f1, precision, recall } = overlap::guarded_token_scores(prediction, golden);
    let acc = f64::from(u8::from(equal || prediction.contains(golden)));
    AnswerScores { em: f64::from(u8::from(equal)), f1, acc, precision, recall }
}

impl AnswerScores {
    /// The metrics' names, in the order of [`AnswerScores::values`].
    pub const NAMES: [&'static str; 5] = ["em", "f1", "acc", "precision", "recall"];

    /// The metrics, in the order of [`AnswerScores::NAMES`].
    pub fn values(&self) -> [f64; 5] {
        [self.em, self.f1, self.acc, self.precision, self.recall]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn golden(value: &Value) -> Vec<String> {
        match value {
            Value::String(one) => vec![one.clone()],
            _ => serde_json::from_value(value.clone()).unwrap(),
        }
    }

    #[test]
    fn golden_vectors_of_flashrag() {
        let text = searchmill_fixtures::golden("qa_metrics.jsonl");
        let mut rows = 0;
        for line in text.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let golden = golden(&row["golden_answers"]);
            let prediction = row["prediction"].as_str().unwrap();
            assert_eq!(normalize_answer(prediction), row["norm_prediction"].as_str().unwrap(), "{}", row["id"]);
            let normalized: Vec<_> = golden.iter().map(|answer| normalize_answer(answer)).collect();
            assert_eq!(serde_json::json!(normalized), row["norm_golden"], "{}", row["id"]);
            let scores = answer_scores(prediction, &golden);
            for (name, value) in AnswerScores::NAMES.iter().zip(scores.values()) {
                // `serde_json` may read a number one unit in the last place off.
                assert!((value - row[*name].as_f64().unwrap()).abs() < 1e-12, "{} {name}", row["id"]);
            }
            rows += 1;
        }
        assert!(rows >= 42, "{rows} rows");
    }

    #[test]
    fn nothing_to_compare_with_scores_zero() {
        assert_eq!(answer_scores("Google", &[]), AnswerScores::default());
    }

    proptest! {
        #[test]
        fn scores_are_bounded_and_order_free(
            words in proptest::collection::vec("[a-d]{1,2}", 0..40),
            other in proptest::collection::vec("[a-d]{1,2}", 0..40),
        ) {
            let (left, right) = (words.join(" "), other.join(" "));
            let scores = answer_scores(&left, std::slice::from_ref(&right));
            prop_assert!(scores.values().iter().all(|v| (0.0..=1.0).contains(v)));
            let mirrored = answer_scores(&right, std::slice::from_ref(&left));
            prop_assert_eq!(scores.precision, mirrored.recall);
            prop_assert_eq!(scores.em, mirrored.em);
            prop_assert!((scores.f1 - mirrored.f1).abs() < 1e-12);
            let mut reversed = words.clone();
            reversed.reverse();
            prop_assert_eq!(scores.f1, answer_scores(&reversed.join(" "), &[right]).f1);
        }

        #[test]
        fn an_answer_agrees_with_itself(text in "\\PC{0,40}") {
            let scores = answer_scores(&text, std::slice::from_ref(&text));
            prop_assert_eq!(scores.em, 1.0);
            prop_assert_eq!(scores.acc, 1.0);
            prop_assert_eq!(scores.f1, f64::from(u8::from(!normalize_answer(&text).is_empty())));
        }

        #[test]
        fn a_further_golden_answer_never_lowers_a_score(
            prediction in "[a-c ]{0,12}", first in "[a-c ]{0,12}", second in "[a-c ]{0,12}",
        ) {
            let one = answer_scores(&prediction, std::slice::from_ref(&first));
            let both = answer_scores(&prediction, &[first, second]);
            prop_assert!(one.values().iter().zip(both.values()).all(|(a, b)| *a <= b));
        }
    }
}
