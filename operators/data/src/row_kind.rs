//! The record kind of rows, as named by `as:` in YAML.

use schemars::JsonSchema;
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};

/// A record kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// A text with id and title.
    Document,
    /// A piece of a document.
    Chunk,
    /// A question with golden answers and evidence.
    Question,
    /// A retrieved chunk.
    Hit,
    /// A rollout.
    Trajectory,
    /// Answer metrics of a trajectory.
    Score,
    /// Two rollouts of a question, one better than the other.
    Pair,
    /// A training example.
    Example,
    /// An aggregated metric.
    Metric,
    /// A rejected row.
    Reject,
    /// Any columns.
    #[default]
    Table,
}

impl From<RowKind> for RecordKind {
    fn from(kind: RowKind) -> Self {
        match kind {
            RowKind::Document => Self::Document,
            RowKind::Chunk => Self::Chunk,
            RowKind::Question => Self::Question,
            RowKind::Hit => Self::Hit,
            RowKind::Trajectory => Self::Trajectory,
            RowKind::Score => Self::Score,
            RowKind::Pair => Self::Pair,
            RowKind::Example => Self::Example,
            RowKind::Metric => Self::Metric,
            RowKind::Reject => Self::Reject,
            RowKind::Table => Self::Table,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_kind_can_be_named() {
        for kind in RecordKind::ALL {
            let named: RowKind = serde_json::from_value(kind.name().into()).unwrap();
            assert_eq!(RecordKind::from(named), kind);
        }
    }
}
