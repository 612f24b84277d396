//! Cuts: how samples become a label.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use searchmill_engine::operator::ParamIssue;
use serde::{Deserialize, Serialize};

/// Label of questions whose samples are too few to decide.
pub(crate) const UNDETERMINED: &str = "undetermined";

/// How to name the difficulty of a question.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Cut {
    /// By the number of the first correct sample: `easy`, `medium` or `difficult` (RUCAIBox/R1-Searcher, README: fewer
    /// than 10, 10 to 20, more than 20 rollouts; it leaves open what exactly 10 and 20 are, here they are medium).
    /// Without a correct sample, a question is `difficult` if it has at least `difficult_above` samples, otherwise
    /// `undetermined`.
    FirstCorrect {
        /// Easy: the first correct sample has a lower number.
        #[serde(default = "easy_below")]
        easy_below: u32,
        /// Difficult: the first correct sample has a higher number.
        #[serde(default = "difficult_above")]
        difficult_above: u32,
    },
    /// By the share of correct samples: each label with the lowest share it stands for, as in `{easy: 0.7, medium: 0.2,
    /// difficult: 0}`. Without samples, and below the lowest of these shares, a question is `undetermined`.
    PassRate(BTreeMap<String, f64>),
}

fn easy_below() -> u32 {
    10
}

fn difficult_above() -> u32 {
    20
}

impl Default for Cut {
    fn default() -> Self {
        Self::FirstCorrect { easy_below: easy_below(), difficult_above: difficult_above() }
    }
}

/// The difficulty of one question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rating {
    pub(crate) label: String,
    /// Number of the first correct sample, from 1.
    pub(crate) attempts: Option<i64>,
    /// Share of correct samples.
    pub(crate) pass_rate: Option<f64>,
    pub(crate) samples: i64,
}

impl Cut {
    /// Rates a question by which of its samples are correct, in order.
    pub(crate) fn rate(&self, samples: &[bool]) -> Rating {
        let first = samples.iter().position(|correct| *correct).map(|index| index + 1);
        let correct = samples.iter().filter(|correct| **correct).count();
        let pass_rate = if samples.is_empty() { None } else { Some(correct as f64 / samples.len() as f64) };
        let label = match self {
            Self::FirstCorrect { easy_below, difficult_above } => {
                let (easy_below, difficult_above) = (*easy_below as usize, *difficult_above as usize);
                match first {
                    Some(number) if number < easy_below => "easy",
                    Some(number) if number > difficult_above => "difficult",
                    Some(_) => "medium",
                    // More samples could not make it easier.
                    None if samples.len() >= difficult_above.max(1) => "difficult",
                    None => UNDETERMINED,
                }
            }
            Self::PassRate(bins) => {
                let reached = bins.iter().filter(|(_, bound)| pass_rate.is_some_and(|rate| **bound <= rate));
                reached.max_by(|a, b| a.1.total_cmp(b.1)).map_or(UNDETERMINED, |(label, _)| label.as_str())
            }
        };
        let (label, attempts) = (label.to_owned(), first.map(|number| number as i64));
        Rating { label, attempts, pass_rate, samples: samples.len() as i64 }
    }

    /// Returns the labels, easiest first, `undetermined` last.
    pub(crate) fn labels(&self) -> Vec<&str> {
        let mut labels = match self {
            Self::FirstCorrect { .. } => vec!["easy", "medium", "difficult"],
            Self::PassRate(bins) => {
                let mut bins: Vec<_> = bins.iter().collect();
                // The highest share is the easiest.
                bins.sort_by(|a, b| b.1.total_cmp(a.1));
                bins.into_iter().map(|(label, _)| label.as_str()).collect()
            }
        };
        labels.push(UNDETERMINED);
        labels
    }

    pub(crate) fn issues(&self) -> Vec<ParamIssue> {
        match self {
            Self::FirstCorrect { easy_below: 0, .. } => {
                vec![ParamIssue::new("cut.first_correct.easy_below", "must be at least 1")]
            }
            Self::FirstCorrect { easy_below, difficult_above } if difficult_above.saturating_add(1) < *easy_below => {
                let (from, to) = (difficult_above + 1, easy_below - 1);
                let message = format!("samples from {from} to {to} would be both easy and difficult");
                let issue = ParamIssue::new("cut.first_correct.difficult_above", message);
                vec![issue.with_help(format!("write {to} or more"))]
            }
            Self::FirstCorrect { .. } => Vec::new(),
            Self::PassRate(bins) => bin_issues(bins),
        }
    }
}

fn bin_issues(bins: &BTreeMap<String, f64>) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (label, bound) in bins {
        if !(0.0..=1.0).contains(bound) {
            let message = format!("must be between 0 and 1, found {bound}");
            issues.push(ParamIssue::new(format!("cut.pass_rate.{label}"), message));
        }
    }
    let mut seen = Vec::new();
    for (label, bound) in bins {
        // With equal bounds, `rate` would choose between the labels by their names.
        if seen.contains(&bound) {
            let message = format!("another label starts at {bound} too");
            issues.push(ParamIssue::new(format!("cut.pass_rate.{label}"), message));
        }
        seen.push(bound);
    }
    if bins.contains_key(UNDETERMINED) {
        let path = format!("cut.pass_rate.{UNDETERMINED}");
        issues.push(ParamIssue::new(path, "is the label of questions without samples"));
    }
    if bins.is_empty() {
        let issue = ParamIssue::new("cut.pass_rate", "there are no labels");
        issues.push(issue.with_help("write for example `{easy: 0.7, medium: 0.2, difficult: 0}`"));
    }
    issues
}
