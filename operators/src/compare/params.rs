//! Params of `compare`, and their checks.

use schemars::JsonSchema;
use searchmill_engine::operator::{ParamIssue, Tables};
use serde::{Deserialize, Serialize};

use crate::shared::answered::with_metric_fields;
use crate::shared::relation::{check_key, directed, unknown_key, unknown_keys};
use crate::shared::statistics::bootstrap_issues;

pub(super) const QUESTIONS: &str = "questions";
pub(super) const METRICS: &str = "metrics";
pub(super) const REPORT: &str = "report";

/// Parameters of `compare`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct CompareParams {
    /// What to compare, the most important first: columns or SQL expressions with numbers or booleans (`[f1]`). Higher is
    /// better; write `asc` behind those where lower is better, for example `[f1, total_tokens asc]`. Rows with
    /// `prediction` and `golden_answers`, such as trajectories, also have `em`, `f1`, `acc`, `precision` and `recall`.
    pub(crate) by: Vec<String>,
    /// Name of the baseline (`base`): an input, or a value of `system`. All others are compared with it.
    pub(crate) base: String,
    /// Column or SQL expression that names the system, for a single input with the rows of all systems (default: each
    /// input is a system).
    pub(crate) system: Option<String>,
    /// Column or SQL expression that identifies the question in every input (`question_id`). Systems with other ids may
    /// share the text: `question`.
    pub(crate) on: String,
    /// Columns or SQL expressions to break the figures down by, each separately. The row of the baseline counts.
    pub(crate) group_by: Vec<String>,
    /// Bootstrap resamples for the intervals (1,000; 0 = no intervals). Each draws whole questions.
    pub(crate) resamples: u32,
    /// Random sign flips of the permutation test if it is not exact (10,000; 0 = exact tests alone).
    pub(crate) permutations: u32,
    /// Coverage of the intervals, between 0 and 1.
    pub(crate) confidence: f64,
    /// Questions shown in full for each system (5): the ones that regressed most, and as many that improved most.
    pub(crate) examples: u32,
    /// Heading of the report.
    pub(crate) title: String,
}

impl Default for CompareParams {
    fn default() -> Self {
        Self {
            by: vec!["f1".to_owned()],
            base: "base".to_owned(),
            system: None,
            on: "question_id".to_owned(),
            group_by: Vec::new(),
            resamples: 1000,
            permutations: 10_000,
            confidence: 0.95,
            examples: 5,
            title: "Comparison".to_owned(),
        }
    }
}

/// Something to compare by.
#[derive(Clone, Debug)]
pub(super) struct By {
    /// Column or SQL expression.
    pub(super) key: String,
    /// Whether higher is better.
    pub(super) higher: bool,
}

impl CompareParams {
    pub(super) fn by(&self) -> Vec<By> {
        let keys = self.by.iter().map(|text| directed(text).unwrap_or((text.trim(), true)));
        keys.map(|(key, higher)| By { key: key.to_owned(), higher }).collect()
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.by().into_iter().map(|by| by.key).collect()
    }

    pub(super) fn issues(&self) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        for (path, keys) in [("by", self.keys()), ("group_by", self.group_by.clone())] {
            for (index, key) in keys.iter().enumerate() {
                let path = format!("{path}.{index}");
                if keys[..index].contains(key) {
                    issues.push(ParamIssue::new(&path, "is listed twice"));
                }
                issues.extend(check_key(&path, key));
            }
        }
        if self.by.is_empty() {
            issues.push(ParamIssue::new("by", "name at least one column"));
        }
        issues.extend(check_key("on", &self.on));
        if let Some(system) = &self.system {
            issues.extend(check_key("system", system));
        }
        issues.extend(bootstrap_issues(self.resamples, self.confidence));
        if self.permutations > 1_000_000 {
            issues.push(ParamIssue::new("permutations", "must be at most 1,000,000"));
        }
        issues
    }

    pub(super) fn input_issues(&self, inputs: &[&str]) -> Option<ParamIssue> {
        let issue = match &self.system {
            Some(_) if inputs.len() > 1 => {
                ParamIssue::new("system", "the systems have two origins: `system` and the names of the inputs")
                    .with_help("remove `system`, or bind one input with the rows of all systems")
            }
            None if inputs.len() < 2 => ParamIssue::new("", "there is nothing to compare with")
                .with_help("write `from: {base: ONE, new: OTHER}`, or name the column of the `system`"),
            None if !inputs.contains(&self.base.as_str()) => {
                let help = format!("name the baseline `base`, or write its name; inputs: `{}`", inputs.join("`, `"));
                ParamIssue::new("base", format!("there is no input `{}`", self.base)).with_help(help)
            }
            _ => return None,
        };
        Some(issue)
    }

    pub(super) fn column_issues(&self, tables: &Tables) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        for (name, schema) in tables {
            let schema = with_metric_fields(schema);
            // The groups of a question are those of the baseline's row.
            let groups = if self.system.is_some() || *name == self.base { &self.group_by[..] } else { &[] };
            let mut unknown = unknown_keys(&schema, "by", &self.keys());
            unknown.extend(unknown_key(&schema, "on", &self.on));
            if let Some(system) = &self.system {
                unknown.extend(unknown_key(&schema, "system", system));
            }
            unknown.extend(unknown_keys(&schema, "group_by", groups));
            for mut issue in unknown {
                issue.message = format!("input `{name}`: {}", issue.message);
                issues.push(issue);
            }
        }
        issues
    }
}
