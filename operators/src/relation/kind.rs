//! The kind of rows that a query gives, as written in YAML.

use datafusion::common::DFSchema;
use schemars::JsonSchema;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};

/// A record kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResultKind {
    /// A text with an id and a title.
    Document,
    /// A piece of a document.
    Chunk,
    /// A question with golden answers.
    Question,
    /// A retrieved chunk.
    Hit,
    /// A rollout.
    Trajectory,
    /// The metrics of a trajectory.
    Score,
    /// A training example.
    Example,
    /// An aggregated figure.
    Metric,
    /// A row that failed.
    Reject,
    /// Any columns.
    #[default]
    Table,
}

impl From<ResultKind> for RecordKind {
    fn from(kind: ResultKind) -> Self {
        match kind {
            ResultKind::Document => Self::Document,
            ResultKind::Chunk => Self::Chunk,
            ResultKind::Question => Self::Question,
            ResultKind::Hit => Self::Hit,
            ResultKind::Trajectory => Self::Trajectory,
            ResultKind::Score => Self::Score,
            ResultKind::Example => Self::Example,
            ResultKind::Metric => Self::Metric,
            ResultKind::Reject => Self::Reject,
            ResultKind::Table => Self::Table,
        }
    }
}

/// Fails when a result lacks columns of the kind it is declared to be.
pub(crate) fn require_columns(kind: ResultKind, schema: &DFSchema) -> Result<(), OperatorError> {
    let kind = RecordKind::from(kind);
    let wanted = kind.schema();
    let missing: Vec<String> = wanted
        .fields()
        .iter()
        .filter(|field| !schema.has_column_with_unqualified_name(field.name()))
        .map(|field| format!("`{}`", field.name()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the result is declared as {kind} rows but lacks {}", missing.join(", "));
    Err(OperatorError::pipeline(message).with_help("select these columns too, or write `as: table`"))
}
