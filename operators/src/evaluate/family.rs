//! Answer metrics of other systems, each in a family of its own: same name, another rule.

use schemars::JsonSchema;
use searchmill_schemas::named;
use searchmill_text::answer_metrics::hotpot::{HotpotScores, hotpot_scores};
use searchmill_text::answer_metrics::kilt::{KiltScores, kilt_scores};
use searchmill_text::answer_metrics::longbench::longbench_qa_f1;
use searchmill_text::answer_metrics::musique::{MusiqueScores, musique_scores};
use searchmill_text::answer_metrics::r1_searcher::{R1SearcherScores, r1_searcher_scores};
use searchmill_text::answer_metrics::searchlm::{SearchLmScores, searchlm_scores};
use serde::{Deserialize, Serialize};

named! {
    /// The answer metrics of one system.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Family {
        /// FlashRAG: `em`, `f1`, `acc`, `precision`, `recall`. SQuAD's normaliser (lower case, no punctuation, no `a`,
        /// `an`, `the`); `yes`, `no` and `noanswer` match only themselves in F1, precision and recall.
        Flashrag = "flashrag",
        /// KILT: `kilt/accuracy` (equal texts, letter for letter), `kilt/em`, `kilt/f1`, `kilt/rougel` (ROUGE-L F of the
        /// package `rouge` 1.0.1, not normalised). SQuAD's normaliser, no guard for `yes` and `no`.
        Kilt = "kilt",
        /// LongBench: `longbench/qa_f1`. SQuAD's normaliser, no guard for `yes` and `no`.
        Longbench = "longbench",
        /// HotpotQA: `hotpot/em`, `hotpot/f1`, `hotpot/precision`, `hotpot/recall`, the last three of the answer with the
        /// highest F1. SQuAD's normaliser; `yes`, `no` and `noanswer` match only themselves.
        Hotpot = "hotpot",
        /// MuSiQue: `musique/em`, `musique/f1` (1 if both texts are empty). SQuAD's normaliser, no guard.
        Musique = "musique",
        /// R1-Searcher: `r1-searcher/em`, `r1-searcher/cover_em_1` (ACC_R: every word of the answer is in the prediction),
        /// `r1-searcher/cover_em_2` (the answer's text is in the prediction), `r1-searcher/f1`, `r1-searcher/precision`,
        /// `r1-searcher/recall`. Its own normaliser: punctuation becomes a space, so `Jay-Z` is `Jay Z` and `U.S.` is not
        /// `US`.
        R1Searcher = "r1-searcher",
        /// SearchLM (ExSearch): `searchlm/em`, `searchlm/acc` (the answer's text is in the prediction, also inside a word),
        /// `searchlm/f1`. SQuAD's normaliser, no guard for `yes` and `no`.
        Searchlm = "searchlm",
    }
}

impl Family {
    /// Returns the title of its table: the system and its normaliser.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Flashrag => "FlashRAG (SQuAD's normaliser)",
            Self::Kilt => "KILT (SQuAD's normaliser; accuracy and ROUGE-L without)",
            Self::Longbench => "LongBench (SQuAD's normaliser)",
            Self::Hotpot => "HotpotQA (SQuAD's normaliser)",
            Self::Musique => "MuSiQue (SQuAD's normaliser)",
            Self::R1Searcher => "R1-Searcher (its own normaliser)",
            Self::Searchlm => "SearchLM (SQuAD's normaliser)",
        }
    }

    /// Returns the names of its metrics; none for FlashRAG's, which every evaluation has under other names.
    fn metrics(self) -> &'static [&'static str] {
        match self {
            Self::Flashrag => &[],
            Self::Kilt => &KiltScores::NAMES,
            Self::Longbench => &["qa_f1"],
            Self::Hotpot => &HotpotScores::NAMES,
            Self::Musique => &MusiqueScores::NAMES,
            Self::R1Searcher => &R1SearcherScores::NAMES,
            Self::Searchlm => &SearchLmScores::NAMES,
        }
    }

    fn scores(self, prediction: &str, golden: &[String]) -> Vec<f64> {
        match self {
            Self::Flashrag => Vec::new(),
            Self::Kilt => kilt_scores(prediction, golden).values().into(),
            Self::Longbench => vec![longbench_qa_f1(prediction, golden)],
            Self::Hotpot => hotpot_scores(prediction, golden).values().into(),
            Self::Musique => musique_scores(prediction, golden).values().into(),
            Self::R1Searcher => r1_searcher_scores(prediction, golden).values().into(),
            Self::Searchlm => searchlm_scores(prediction, golden).values().into(),
        }
    }
}

/// Returns the names of the families' metrics, such as `kilt/em`.
pub(crate) fn names(families: &[Family]) -> impl Iterator<Item = String> {
    families.iter().flat_map(|family| family.metrics().iter().map(|metric| format!("{}/{metric}", family.name())))
}

/// Scores a prediction with the families' metrics, in the order of [`names`].
pub(crate) fn scores(families: &[Family], prediction: &str, golden: &[String]) -> Vec<f64> {
    families.iter().flat_map(|family| family.scores(prediction, golden)).collect()
}

/// The default: FlashRAG's family alone.
pub(crate) fn flashrag() -> Vec<Family> {
    vec![Family::Flashrag]
}

/// Whether no other family is asked for.
pub(crate) fn is_flashrag(families: &[Family]) -> bool {
    families == [Family::Flashrag]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_scores_belong_together() {
        let golden = ["Jay Z".to_owned()];
        let scored: Vec<_> = names(&Family::ALL).zip(scores(&Family::ALL, "Jay-Z!", &golden)).collect();
        assert_eq!(scored.len(), 20);
        let of = |name: &str| scored.iter().find(|(known, _)| known == name).unwrap().1;
        assert_eq!((of("kilt/em"), of("r1-searcher/em"), of("r1-searcher/cover_em_1")), (0.0, 1.0, 1.0));
        for family in Family::ALL {
            assert_eq!(serde_json::json!(family), family.name());
            assert!(names(&[family]).all(|name| name.starts_with(family.name())));
        }
        assert_eq!((names(&flashrag()).count(), scores(&flashrag(), "x", &golden).len()), (0, 0));
    }
}
