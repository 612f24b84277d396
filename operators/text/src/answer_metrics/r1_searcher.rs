//! R1-Searcher's metrics and its normaliser, which differs from SQuAD's: punctuation becomes a *space*.
//!
//! Source: `evaluation/metric_calc_rule.py` and the reward servers of RUCAIBox/R1-Searcher at 631167c. Hence `Jay-Z`
//! equals `Jay Z`, but `U.S.` does not equal `US`. Before normalisation, the exact texts `True` and `False` count as
//! `yes` and `no`.

use crate::answer_metrics::overlap::{TokenScores, best_f1, guarded_token_scores};
use crate::normalize::{join_words, without_articles};

/// The six metrics of one prediction, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct R1SearcherScores {
    /// The normalised texts are equal.
    pub em: f64,
    /// `ACC_R`: every word of the golden answer is a word of the prediction, in any order, at any place.
    pub cover_em_1: f64,
    /// The golden answer is a substring of the prediction, both normalised (characters, not words).
    pub cover_em_2: f64,
    /// Token F1, where `yes`, `no` and `noanswer` match only themselves.
    pub f1: f64,
    /// Shared tokens over the prediction's tokens.
    pub precision: f64,
    /// Shared tokens over the golden answer's tokens.
    pub recall: f64,
}

/// Scores a prediction. `em` and both cover metrics take their own maximum over the golden answers; F1, precision and
/// recall are those of the first answer with the highest F1. Without golden answers all are 0.
pub fn r1_searcher_scores(prediction: &str, golden: &[String]) -> R1SearcherScores {
    let prediction = normalize(bool_word(prediction));
    let golden: Vec<String> = golden.iter().map(|answer| normalize(bool_word(answer))).collect();
    let best = best_f1(golden.iter().map(|answer| guarded_token_scores(&prediction, answer)));
    let TokenScores { f1, precision, recall } = best;
    let em = f64::from(u8::from(golden.contains(&prediction)));
    let cover_em_1 = f64::from(u8::from(golden.iter().any(|answer| covers(&prediction, answer))));
    // A list of words that contains another one in a row also contains its text: one check serves both rules.
    let cover_em_2 = f64::from(u8::from(golden.iter().any(|answer| prediction.contains(answer.as_str()))));
    R1SearcherScores { em, cover_em_1, cover_em_2, f1, precision, recall }
}

/// Returns F1, precision and recall against one golden answer, as R1-Searcher's reward servers compute them.
pub fn r1_searcher_f1(prediction: &str, golden: &str) -> TokenScores {
    guarded_token_scores(&normalize(bool_word(prediction)), &normalize(bool_word(golden)))
}

/// Whether every word of the golden answer is a word of the prediction (`cover_em_1`).
pub fn r1_searcher_covers(prediction: &str, golden: &str) -> bool {
    covers(&normalize(bool_word(prediction)), &normalize(bool_word(golden)))
}

/// Normalises an answer: lower-case words without `a`, `an`, `the`; ASCII punctuation and `‘ ’ ´` separate words.
pub fn normalize(text: &str) -> String {
    let mut lower = text.to_lowercase();
    if lower.contains(is_separator) {
        lower = lower.replace(is_separator, " ");
    }
    join_words(&without_articles(&lower))
}

fn is_separator(c: char) -> bool {
    c.is_ascii_punctuation() || matches!(c, '‘' | '’' | '´')
}

fn bool_word(text: &str) -> &str {
    match text {
        "True" => "yes",
        "False" => "no",
        other => other,
    }
}

/// Both texts are normalised. An empty text is a list of one empty word: only an empty prediction covers it.
fn covers(prediction: &str, golden: &str) -> bool {
    let words: Vec<&str> = prediction.split(' ').collect();
    golden.split(' ').all(|word| words.contains(&word))
}

impl R1SearcherScores {
    /// The metrics' names, in the order of [`R1SearcherScores::values`].
    pub const NAMES: [&'static str; 6] = ["em", "cover_em_1", "cover_em_2", "f1", "precision", "recall"];

    /// The metrics, in the order of [`R1SearcherScores::NAMES`].
    pub fn values(&self) -> [f64; 6] {
        [self.em, self.cover_em_1, self.cover_em_2, self.f1, self.precision, self.recall]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::answer_metrics::golden_rows::{assert_close, assert_values, rows, rows_of, texts};

    fn scores(row: &Value) -> R1SearcherScores {
        r1_searcher_scores(row["input"]["pred_ans"].as_str().unwrap(), &texts(&row["ground_truth"]))
    }

    #[test]
    fn golden_vectors_of_r1_searcher() {
        for row in rows("r1searcher_metric_rule") {
            assert_values(&row, &R1SearcherScores::NAMES, &scores(&row).values());
        }
    }

    #[test]
    fn golden_trajectories_of_r1_searcher() {
        for row in rows_of("r1_searcher_trajectories.jsonl", "r1searcher_real_trajectory") {
            assert_values(&row, &R1SearcherScores::NAMES[..4], &scores(&row).values()[..4]);
        }
    }

    /// The means over the whole result file, of which the shared folder has one.
    #[test]
    fn golden_means_of_r1_searcher() {
        let Some(text) = searchmill_fixtures::shared_text("data/r1_searcher/eval_bamboogle_qwen.jsonl") else { return };
        let mut sums = [0.0; 6];
        let mut count = 0.0;
        for line in text.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let values = r1_searcher_scores(row["pred_ans"].as_str().unwrap(), &texts(&row["answer"])).values();
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            count += 1.0;
        }
        let expected = rows("r1searcher_aggregate").into_iter().find(|row| row["input"]["file"] == "bamboogle_qwen");
        let expected = expected.expect("the file's row");
        for (place, name) in ["em", "cem1", "cem2", "f1"].iter().enumerate() {
            let mean: f64 = format!("{:.6}", sums[place] / count).parse().unwrap();
            assert_close(&expected, mean, &expected["expected"][name]);
        }
    }

    #[test]
    fn punctuation_separates_words() {
        // Expected values printed by CPython 3.11 with R1-Searcher's function.
        assert_eq!(normalize("Jay-Z"), "jay z");
        assert_eq!(normalize("U.S."), "u s");
        assert_eq!(normalize("New_York_City"), "new york city");
        assert_eq!(normalize("O’Brien ´s ‘x’ `y`"), "o brien s x y");
        assert_eq!(normalize("“The A-Team”"), "“ team”");
        assert_eq!(normalize("a_an_the_x"), "x");
        assert_eq!(normalize("Ἀ THE ΟΔΟΣ."), "ἀ οδος");
        assert_eq!(normalize("x’a’y"), "x y");
        assert_eq!(normalize("one—two"), "one—two");
        assert_eq!(normalize("Sam\u{a0}the\u{1c}Altman"), "sam altman");
        assert_eq!(normalize("a\u{301} an-a"), "\u{301}");
        assert_eq!(normalize("İ.I"), "i\u{307} i");
        assert_eq!(normalize("..."), "");
        assert_eq!(normalize("𝐀 the"), "𝐀");
        assert_eq!(normalize("東京。the"), "東京。");
    }

    #[test]
    fn empty_texts_cover_only_each_other() {
        let of = |prediction: &str, golden: &str| r1_searcher_scores(prediction, &[golden.to_owned()]).values();
        assert_eq!(of("", "the"), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(of("x", "the"), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(of("", "x"), [0.0; 6]);
        assert_eq!(r1_searcher_scores("x", &[]), R1SearcherScores::default());
        assert_eq!(of(" True", "yes"), [0.0; 6], "only the exact text is mapped");
    }
}
