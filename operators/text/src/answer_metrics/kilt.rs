//! KILT's downstream metrics: strict accuracy, exact match, token F1 and ROUGE-L.
//!
//! Source: `kilt/eval_downstream.py` of facebookresearch/KILT at 2664322 (Petroni et al. 2021). Normaliser: SQuAD.
//! ROUGE-L is the one of the Python package `rouge` 1.0.1, on texts that are not normalised.

use crate::answer_metrics::overlap::token_scores;
use crate::answer_metrics::rouge_l::rouge_l;
use crate::normalize::{normalize_answer, python_trim};

/// The four metrics of one prediction, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KiltScores {
    /// The stripped texts are equal, letter for letter.
    pub accuracy: f64,
    /// The normalised texts are equal.
    pub em: f64,
    /// Token F1 without a guard for `yes` and `no`.
    pub f1: f64,
    /// ROUGE-L F of the stripped texts; 0.999999995 for equal ones.
    pub rougel: f64,
}

/// Scores a prediction; each metric takes its own maximum over the golden answers.
///
/// White space around the texts is stripped, and golden answers that are then empty do not count. Everything is 0
/// for an empty prediction (the original skips the row and still counts it) and without golden answers (the original
/// fails).
pub fn kilt_scores(prediction: &str, golden: &[String]) -> KiltScores {
    let mut best = KiltScores::default();
    let prediction = python_trim(prediction);
    if prediction.is_empty() {
        return best;
    }
    let normalized = normalize_answer(prediction);
    for answer in golden.iter().map(|answer| python_trim(answer)).filter(|answer| !answer.is_empty()) {
        let golden = normalize_answer(answer);
        best.accuracy = best.accuracy.max(f64::from(u8::from(prediction == answer)));
        best.em = best.em.max(f64::from(u8::from(normalized == golden)));
        best.f1 = best.f1.max(token_scores(&normalized, &golden).f1);
        best.rougel = best.rougel.max(rouge_l(prediction, answer));
    }
    best
}

impl KiltScores {
    /// The metrics' names, in the order of [`KiltScores::values`].
    pub const NAMES: [&'static str; 4] = ["accuracy", "em", "f1", "rougel"];

    /// The metrics, in the order of [`KiltScores::NAMES`].
    pub fn values(&self) -> [f64; 4] {
        [self.accuracy, self.em, self.f1, self.rougel]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_metrics::golden_rows::{assert_values, rows, texts};

    #[test]
    fn golden_vectors_of_kilt() {
        for row in rows("kilt_downstream") {
            let scores = kilt_scores(row["input"]["prediction"].as_str().unwrap(), &texts(&row["ground_truth"]));
            assert_values(&row, &KiltScores::NAMES, &scores.values());
        }
    }

    #[test]
    fn golden_means_of_kilt() {
        for row in rows("kilt_downstream_batch") {
            let predictions = texts(&row["input"]["predictions"]);
            let mut sums = [0.0; 4];
            for (prediction, golden) in predictions.iter().zip(row["ground_truth"].as_array().unwrap()) {
                let values = kilt_scores(prediction, &texts(golden)).values();
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            let means = sums.map(|sum| sum / predictions.len() as f64);
            assert_values(&row, &KiltScores::NAMES, &means);
        }
    }

    #[test]
    fn white_space_is_stripped_as_python_does() {
        let one = |text: &str| vec![text.to_owned()];
        assert_eq!(kilt_scores("\u{1f} Ada\u{a0}", &one("Ada")).accuracy, 1.0);
        assert_eq!(kilt_scores(" \u{1c}", &one("the")), KiltScores::default(), "an empty prediction is no match");
        assert_eq!(kilt_scores("the", &[" ".to_owned()]), KiltScores::default(), "an empty golden answer is none");
        assert_eq!(kilt_scores("Ada", &[]), KiltScores::default());
        assert_eq!(kilt_scores("yes it is", &one("yes")).f1, 0.5, "no guard");
    }
}
