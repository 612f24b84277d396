//! Terms of a weighted sum.

use arrow::array::{Array, Float64Array, RecordBatch};
use schemars::JsonSchema;
use searchmill_agent::grounding::grounded;
use searchmill_agent::reward::{Transcript, format_fault};
use searchmill_engine::operator::{OperatorError, ParamIssue};
use searchmill_schemas::Trajectory;
use searchmill_text::answer_metrics::answer_scores;
use searchmill_text::normalize::normalize_answer;
use serde::{Deserialize, Serialize};

use super::rewarded::{Rewarded, require_answers};
use crate::shared::numbers::numbers;
use crate::shared::unfit::Unfit;

/// A term of the sum with its weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Term {
    /// Token F1 of the prediction, the best over the golden answers (FlashRAG), times the weight.
    F1(f64),
    /// The weight if the rollout has a prediction of more than punctuation and articles.
    Answered(f64),
    /// The weight if the model kept the format of the rollout's protocol: for `research`, `r1-searcher` and `search-r1`
    /// the sequence of their tags, in the model's own text; for the others an answer, and no call that was refused.
    Format(f64),
    /// The weight if a search result contains gold evidence or a golden answer, as for `grounded` of `filter-by-f1`.
    Retrieved(f64),
    /// The mean over the model's turns, times the weight, of: 0 for thoughts shorter than 10, 1 up to 100, falling along
    /// half a cosine to 0 at 600 (in the unit of `count`). 0 if a turn does not have exactly one `<think>…</think>`.
    /// (DeepSearch-RL, ninehills/deepsearch-rl at 78d7101; its weight is 0.5.)
    ShortThink(f64),
    /// A penalty for long rollouts.
    Length(Length),
    /// The value of a column of numbers or booleans (true = 1, false = 0), such as a judge's.
    Column(ColumnTerm),
}

/// A penalty for long rollouts: 0 up to `from`, −1 from `to` on, falling linearly between, times `weight`. (The soft
/// overlong punishment of DAPO, Yu et al. 2025, arXiv 2503.14476, equation 13.)
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct Length {
    /// What to measure.
    #[serde(default)]
    pub(crate) of: Measure,
    /// Largest length without a penalty.
    pub(crate) from: u32,
    /// Smallest length with the whole penalty.
    pub(crate) to: u32,
    /// Weight of the penalty (1).
    #[serde(default = "one")]
    pub(crate) weight: f64,
}

/// A length of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    /// Tokens that the model wrote, over all turns.
    #[default]
    CompletionTokens,
    /// Turns of the model.
    Turns,
    /// Tool calls.
    ToolCalls,
}

/// A column: its name, or `{name: …, weight: …}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected the name of a column, or `{name: …, weight: …}`")]
pub(crate) enum ColumnTerm {
    /// Name of the column; its weight is 1.
    Name(String),
    /// Name and weight.
    Weighted(WeightedColumn),
}

/// A column with a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WeightedColumn {
    /// Name of the column.
    pub(crate) name: String,
    /// Weight of its value (1).
    #[serde(default = "one")]
    pub(crate) weight: f64,
}

fn one() -> f64 {
    1.0
}

impl ColumnTerm {
    fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::Weighted(WeightedColumn { name, .. }) => name,
        }
    }
}

impl Term {
    fn name(&self) -> &str {
        match self {
            Self::F1(_) => "f1",
            Self::Answered(_) => "answered",
            Self::Format(_) => "format",
            Self::Retrieved(_) => "retrieved",
            Self::ShortThink(_) => "short_think",
            Self::Length(_) => "length",
            Self::Column(column) => column.name(),
        }
    }

    fn weight(&self) -> f64 {
        match self {
            Self::F1(weight)
            | Self::Answered(weight)
            | Self::Format(weight)
            | Self::Retrieved(weight)
            | Self::ShortThink(weight)
            | Self::Length(Length { weight, .. })
            | Self::Column(ColumnTerm::Weighted(WeightedColumn { weight, .. })) => *weight,
            Self::Column(ColumnTerm::Name(_)) => 1.0,
        }
    }

    fn issue(&self, path: &str) -> Option<ParamIssue> {
        let (part, message, help) = match self {
            Self::Length(length) if length.from >= length.to => {
                (".length.to", "must be larger than `from`", "the penalty falls from 0 at `from` to −1 at `to`")
            }
            Self::Column(column) if column.name().trim().is_empty() => {
                (".column", "the name is empty", "name a column of numbers or booleans")
            }
            _ if !self.weight().is_finite() => ("", "the weight is not a finite number", "write a number"),
            _ => return None,
        };
        Some(ParamIssue::new(format!("{path}{part}"), message).with_help(help))
    }
}

/// Returns what is wrong with the terms, each at its place.
pub(super) fn issues(terms: &[Term]) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let path = format!("sum.{index}");
        issues.extend(term.issue(&path));
        // The parts of a reward are told apart by their names.
        if terms[..index].iter().any(|other| other.name() == term.name()) {
            let issue = ParamIssue::new(path, format!("the sum has two terms `{}`", term.name()));
            issues.push(issue.with_help("add their weights in one term"));
        }
    }
    issues
}

/// The columns that the terms read, in the order of the terms that read one.
#[derive(Default)]
pub(super) struct Columns(Vec<Float64Array>);

impl Columns {
    /// Reads the columns.
    ///
    /// # Errors
    /// Fails if a column is missing or neither numeric nor boolean.
    pub(super) fn of(batch: &RecordBatch, terms: &[Term]) -> Result<Self, OperatorError> {
        let named = terms.iter().filter_map(|term| match term {
            Term::Column(column) => Some(column.name()),
            _ => None,
        });
        Ok(Self(named.map(|name| column(batch, name)).collect::<Result<_, _>>()?))
    }

    fn value(&self, column: usize, row: usize, name: &str) -> Result<f64, Unfit> {
        let found = self.0.get(column).filter(|values| !values.is_null(row)).map(|values| values.value(row));
        match found {
            None => Err(Unfit::new(format!("its column `{name}` is null"))),
            Some(value) if !value.is_finite() => {
                Err(Unfit::new(format!("its column `{name}` is {value}, not a number")))
            }
            Some(value) => Ok(value),
        }
    }
}

fn column(batch: &RecordBatch, name: &str) -> Result<Float64Array, OperatorError> {
    let Some(column) = batch.column_by_name(name) else {
        let schema = batch.schema();
        let known = schema.fields().iter().map(|field| format!("`{}`", field.name())).collect::<Vec<_>>().join(", ");
        return Err(OperatorError::pipeline(format!("`sum`: the rollouts have no column `{name}`"))
            .with_help(format!("columns: {known}")));
    };
    // A column of nulls has no type: each of its rows is a reject.
    numbers(column)?.ok_or_else(|| {
        let kind = column.data_type();
        OperatorError::pipeline(format!("`sum`: the column `{name}` is {kind}, not numbers or booleans"))
            .with_help("compute a number from it, for example with `sql`")
    })
}

/// Adds up the terms of one rollout, in the given order.
pub(super) fn add_up(
    terms: &[Term],
    row: &Trajectory,
    transcript: &Transcript,
    short_think: f64,
    index: usize,
    columns: &Columns,
) -> Result<Rewarded, Unfit> {
    let mut rewarded = Rewarded { value: 0.0, parts: Vec::with_capacity(terms.len()) };
    let mut column = 0;
    for term in terms {
        let value = match term {
            Term::F1(_) => f1(row)?,
            Term::Answered(_) => f64::from(!normalize_answer(&row.prediction).is_empty()),
            Term::Format(_) => f64::from(format_fault(&row.protocol, transcript, &row.prediction).is_none()),
            Term::Retrieved(_) => retrieved(row)?,
            Term::ShortThink(_) => short_think,
            Term::Length(length) => length.of(row),
            Term::Column(named) => {
                column += 1;
                columns.value(column - 1, index, named.name())?
            }
        };
        let part = term.weight() * value;
        rewarded.value += part;
        rewarded.parts.push((term.name().to_owned(), part));
    }
    Ok(rewarded)
}

fn f1(row: &Trajectory) -> Result<f64, Unfit> {
    require_answers(&row.golden_answers, |answer| !normalize_answer(answer).is_empty())?;
    Ok(answer_scores(&row.prediction, &row.golden_answers).f1)
}

fn retrieved(row: &Trajectory) -> Result<f64, Unfit> {
    // Without evidence, a rollout is grounded if its results contain a golden answer.
    if row.evidence.is_empty() {
        require_answers(&row.golden_answers, |answer| !normalize_answer(answer).is_empty())?;
    }
    Ok(f64::from(grounded(row)))
}

impl Length {
    fn of(&self, row: &Trajectory) -> f64 {
        let length = match self.of {
            Measure::CompletionTokens => row.completion_tokens as f64,
            Measure::Turns => f64::from(row.turns),
            Measure::ToolCalls => f64::from(row.tool_calls),
        };
        let (from, to) = (f64::from(self.from), f64::from(self.to));
        // Not `-0.0` for short rollouts: the sign would show.
        0.0 - ((length - from) / (to - from)).clamp(0.0, 1.0)
    }
}
