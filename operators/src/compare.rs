//! `compare`: compares systems that answered the same questions, with paired intervals and tests.

mod figures;
mod matched;
mod output;
mod page;
mod shown;
mod side;
mod sign_flip;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use arrow::datatypes::SchemaRef;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs,
    ParamIssue, Ports, Tables, TreeKind,
};
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};

use crate::answered::with_metric_fields;
use crate::relation::{check_key, directed, unknown_keys};
use crate::statistics::Bootstrap;
use figures::{Comparison, corrected};
use matched::Matching;
use page::Page;
use side::Side;

const QUESTIONS: &str = "questions";
const METRICS: &str = "metrics";
const REPORT: &str = "report";

/// Compares systems that answered the same questions: tables of trajectories, of scores, or any tables with a question and
/// a number. Several samples of a question are averaged first. A system wins a question if its mean is better than that of
/// the baseline. Means have paired percentile bootstrap intervals over questions (Efron 1979). The test is a two-sided
/// paired permutation test, which flips the signs of the differences (Fisher 1935): exact for up to 20 questions that
/// differ, with random signs for more. Questions that only one of two systems answered are reported, not compared.
pub(crate) struct Compare;

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
    /// Questions shown in full for each system: that many that regressed most, and that many that improved most (5).
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

impl Operator for Compare {
    type Params = CompareParams;
    const NAME: &'static str = "compare";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Compares systems on the same questions: wins, differences with paired intervals and tests, regressions side by side.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Two sets of rollouts by F1",
            yaml: "compared: {op: compare, from: {base: rollouts_before, new: rollouts_after}}",
        },
        Example {
            title: "Three systems by F1 and by tokens, where fewer are better, for each type of question",
            yaml: "compared:\n  op: compare\n  from: {search_r1: a, research: b, ours: c}\n  with: {base: search_r1, by: [f1, prompt_tokens + completion_tokens asc], group_by: [question_type], examples: 10}",
        },
        Example {
            title: "Rows of all systems in one table, with a column that names the system",
            yaml: "compared: {op: compare, from: {rows: scores}, with: {system: model, base: small, by: [em], on: question, resamples: 5000, permutations: 0}}",
        },
    ];

    fn declare(params: &CompareParams) -> Declaration {
        let ports = Ports::new()
            .named_inputs(Accept::AnyRows)
            .rows_out(
                QUESTIONS,
                RecordKind::Table,
                "A row for each question, system and metric: `question_id`, `system`, `metric`, `base_value`, `value`, \
                 `delta`, `outcome` (`win`, `loss`, `tie`, `unmatched`), `base_samples`, `samples`.",
            )
            .rows_out(
                METRICS,
                RecordKind::Metric,
                "Mean differences with intervals, and the columns `system`, `metric`, `base_value`, `system_value`, `wins`, \
                 `losses`, `ties`, `p_value`, `p_holm` (corrected over all tests of a grouping) and `exact`.",
            )
            .tree_out(REPORT, TreeKind::Report, "`report.html`: figures, and what regressed first; `report.json`.");
        let (named, checked) = (params.clone(), params.clone());
        Declaration::seeded(ports)
            .issues(params.issues())
            .checks_inputs(move |inputs| named.input_issues(inputs).into_iter().collect())
            .checks_columns(move |tables| checked.column_issues(tables))
            .gives(|_| {
                let given = [(QUESTIONS, output::question_schema()), (METRICS, output::metric_schema())];
                given.map(|(port, schema)| (port.to_owned(), schema)).into()
            })
    }

    fn open(params: &CompareParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

/// Something to compare by.
#[derive(Clone, Debug)]
pub(crate) struct By {
    /// Column or SQL expression.
    key: String,
    /// Whether higher is better.
    higher: bool,
}

impl CompareParams {
    fn by(&self) -> Vec<By> {
        let by = |text: &String| match directed(text) {
            Some((key, descends)) => By { key: key.to_owned(), higher: descends },
            None => By { key: text.trim().to_owned(), higher: true },
        };
        self.by.iter().map(by).collect()
    }

    fn keys(&self) -> Vec<String> {
        self.by().into_iter().map(|by| by.key).collect()
    }

    fn issues(&self) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        for (path, keys) in [("by", self.keys()), ("group_by", self.group_by.clone())] {
            let mut seen = BTreeSet::new();
            for (place, key) in keys.iter().enumerate() {
                let path = format!("{path}.{place}");
                issues.extend((!seen.insert(key)).then(|| ParamIssue::new(&path, "is listed twice")));
                issues.extend(check_key(&path, key));
            }
        }
        issues.extend(self.by.is_empty().then(|| ParamIssue::new("by", "name at least one column")));
        issues.extend(check_key("on", &self.on));
        issues.extend(self.system.as_ref().and_then(|system| check_key("system", system)));
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            issues.push(ParamIssue::new("confidence", "must be between 0 and 1").with_help("write 0.95 for 95 %"));
        }
        let counts = [("resamples", self.resamples), ("permutations", self.permutations)];
        let large = counts.into_iter().filter(|(_, count)| *count > 1_000_000);
        issues.extend(large.map(|(path, _)| ParamIssue::new(path, "must be at most 1,000,000")));
        issues
    }

    fn input_issues(&self, inputs: &[&str]) -> Option<ParamIssue> {
        let names = || inputs.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match &self.system {
            Some(_) if inputs.len() > 1 => Some(
                ParamIssue::new("system", "the systems have two origins: `system` and the names of the inputs")
                    .with_help("remove `system`, or bind one input with the rows of all systems"),
            ),
            Some(_) => None,
            None if inputs.len() < 2 => Some(
                ParamIssue::new("", "there is nothing to compare with")
                    .with_help("write `from: {base: ONE, new: OTHER}`, or name the column of the `system`"),
            ),
            None if !inputs.contains(&self.base.as_str()) => Some(
                ParamIssue::new("base", format!("there is no input `{}`", self.base))
                    .with_help(format!("name the baseline `base`, or write its name; inputs: {}", names())),
            ),
            None => None,
        }
    }

    fn column_issues(&self, tables: &Tables) -> Vec<ParamIssue> {
        let check = |(name, schema): (&String, &SchemaRef)| {
            let schema = with_metric_fields(schema);
            let one = |path: &str, key: &str| {
                let found = unknown_keys(&schema, path, &[key]).into_iter();
                found.map(|issue| ParamIssue { path: path.to_owned(), ..issue }).collect::<Vec<_>>()
            };
            let groups = if self.system.is_some() || *name == self.base { &self.group_by[..] } else { &[] };
            let mut issues = unknown_keys(&schema, "by", &self.keys());
            issues.extend(one("on", &self.on));
            issues.extend(self.system.iter().flat_map(|system| one("system", system)));
            issues.extend(unknown_keys(&schema, "group_by", groups));
            let named =
                |issue: ParamIssue| ParamIssue { message: format!("input `{name}`: {}", issue.message), ..issue };
            issues.into_iter().map(named).collect::<Vec<_>>()
        };
        tables.iter().flat_map(check).collect()
    }
}

impl BlockingKernel for CompareParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let by = self.by();
        let mut sides = side::read(self, inputs, outputs, context)?;
        let base = self.baseline(&mut sides)?;
        let bootstrap = Bootstrap { resamples: self.resamples, confidence: self.confidence, seed: context.seed() };
        let mut comparisons = Vec::new();
        for side in &sides {
            context.check_cancelled()?;
            let matching = Matching::of(&base, side);
            output::write_questions(&base, side, &matching, &by, outputs)?;
            comparisons.push(Comparison::new(self, &base, side, matching, &bootstrap, comparisons.len())?);
        }
        corrected(&mut comparisons, self.group_by.len());
        output::write_metrics(self, &comparisons, outputs)?;
        let shown = shown::read(self, inputs, &base, &sides, &comparisons, context)?;
        let page = Page { params: self, by: &by, base: &base, sides: &sides, comparisons: &comparisons, shown: &shown };
        page.publish(&bootstrap, outputs)
    }
}

impl CompareParams {
    /// Takes the baseline out of the sides.
    fn baseline(&self, sides: &mut Vec<Side>) -> Result<Side, OperatorError> {
        let place = sides.iter().position(|side| side.name == self.base);
        if let Some(place) = place.filter(|_| sides.len() > 1) {
            return Ok(sides.remove(place));
        }
        let names = sides.iter().map(|side| format!("`{}`", side.name)).collect::<Vec<_>>().join(", ");
        let of = self.system.as_deref().unwrap_or_default();
        let message = match place {
            Some(_) => format!("`system`: `{of}` is the same in all rows: there is nothing to compare with"),
            None => format!("`base`: `{of}` is never `{}`", self.base),
        };
        Err(OperatorError::pipeline(message).with_help(format!("its values: {names}")))
    }
}
