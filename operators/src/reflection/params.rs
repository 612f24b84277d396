//! Parameters of `reflection`.

use schemars::JsonSchema;
use searchmill_engine::operator::ParamIssue;
use searchmill_text::answer_metrics::answer_scores;
use searchmill_text::answer_metrics::r1_searcher::r1_searcher_scores;
use searchmill_text::lexicon::{Lexicon, REFLECTION};
use serde::{Deserialize, Serialize};

use crate::shared::relation::{check_key, check_keys};
use crate::shared::statistics::bootstrap_issues;

/// Parameters of `reflection`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ReflectionParams {
    /// Names and training steps of the inputs, in their order: each input is a checkpoint. Empty: `by` names the
    /// columns that tell the checkpoints apart.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Columns or SQL expressions whose values tell checkpoints apart. Default: `[model]`.
    pub(crate) by: Vec<String>,
    /// Column or SQL expression with the training step of each row, the same for all rows of a checkpoint. Checkpoints
    /// are then shown in this order, and one partial correlation controls for it.
    pub(crate) step: Option<String>,
    /// Column or SQL expression with the data set of each row. The figures of a checkpoint are then means over its data
    /// sets, each counting the same. Default: all rows are one data set.
    pub(crate) dataset: Option<String>,
    /// Score of a response.
    pub(crate) score: ScoreName,
    /// Regular expressions of the phrases to count (syntax of Rust's `regex`). They match whole words of the unified
    /// text: NFKC, lower case, `'` for all apostrophes, `-` for all hyphens and dashes, single spaces. Default
    /// (`null`): version 1 of the lexicon of reflection.
    pub(crate) lexicon: Option<Vec<String>>,
    /// Bootstrap resamples for the intervals (0 = no intervals). Figures of checkpoints draw whole questions,
    /// correlations draw checkpoints.
    pub(crate) resamples: u32,
    /// Coverage of the intervals, between 0 and 1.
    pub(crate) confidence: f64,
    /// Heading of the report.
    pub(crate) title: String,
}

/// Name and training step of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct Checkpoint {
    /// Name in the report.
    pub(crate) name: String,
    /// Training step.
    #[serde(default)]
    pub(crate) step: Option<f64>,
}

/// Score of a response.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScoreName {
    /// FlashRAG's exact match.
    #[default]
    Em,
    /// FlashRAG's token F1.
    F1,
    /// FlashRAG's accuracy: a golden answer is a substring of the prediction.
    Acc,
    /// R1-Searcher's `cover_exact_match_1`: every word of a golden answer is in the prediction.
    CoverEm,
}

impl ScoreName {
    pub(crate) fn of(self, prediction: &str, golden: &[String]) -> f64 {
        match self {
            Self::Em => answer_scores(prediction, golden).em,
            Self::F1 => answer_scores(prediction, golden).f1,
            Self::Acc => answer_scores(prediction, golden).acc,
            Self::CoverEm => r1_searcher_scores(prediction, golden).cover_em_1,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Em => "em",
            Self::F1 => "f1",
            Self::Acc => "acc",
            Self::CoverEm => "cover_em",
        }
    }
}

impl Default for ReflectionParams {
    fn default() -> Self {
        Self {
            checkpoints: Vec::new(),
            by: Vec::new(),
            step: None,
            dataset: None,
            score: ScoreName::default(),
            lexicon: None,
            resamples: 1000,
            confidence: 0.95,
            title: "Reflection".to_owned(),
        }
    }
}

impl ReflectionParams {
    /// Returns the expressions of the lexicon.
    pub(crate) fn expressions(&self) -> Vec<String> {
        self.lexicon.clone().unwrap_or_else(|| REFLECTION.map(str::to_owned).into())
    }

    /// Returns the columns that tell checkpoints apart.
    pub(crate) fn keys(&self) -> Vec<String> {
        if self.by.is_empty() { vec!["model".to_owned()] } else { self.by.clone() }
    }

    pub(crate) fn issues(&self) -> Vec<ParamIssue> {
        let mut issues = check_keys("by", &self.by);
        for (name, text) in [("step", &self.step), ("dataset", &self.dataset)] {
            issues.extend(text.as_deref().and_then(|text| check_key(name, text)));
        }
        for (index, checkpoint) in self.checkpoints.iter().enumerate() {
            if self.checkpoints[..index].iter().any(|other| other.name == checkpoint.name) {
                issues.push(ParamIssue::new(format!("checkpoints.{index}.name"), "names two checkpoints"));
            }
        }
        for (name, is_set) in [("by", !self.by.is_empty()), ("step", self.step.is_some())] {
            if is_set && !self.checkpoints.is_empty() {
                let issue = ParamIssue::new(name, "with `checkpoints`, each input is one checkpoint");
                issues.push(issue.with_help(format!("remove `{name}` or `checkpoints`")));
            }
        }
        match self.lexicon.as_deref() {
            Some([]) => {
                issues.push(ParamIssue::new("lexicon", "is empty").with_help("leave it out for the default"));
            }
            Some(list) => {
                let wrong = Lexicon::new(list).err();
                issues.extend(wrong.map(|(at, message)| ParamIssue::new(format!("lexicon.{at}"), message)));
            }
            None => {}
        }
        issues.extend(bootstrap_issues(self.resamples, self.confidence));
        issues
    }
}
