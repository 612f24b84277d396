//! Column lineage: the input columns from which a node's output columns derive.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// How an input column contributes. Names and meaning follow OpenLineage's column lineage facet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transformation {
    /// The value is copied.
    Identity,
    /// The value enters an expression.
    Transformation,
    /// Values of several rows are combined.
    Aggregation,
    /// Selects the branch of an expression.
    Conditional,
    /// Selects rows.
    Filter,
    /// Determines which rows are joined.
    Join,
    /// Determines which rows are grouped.
    GroupBy,
    /// Determines the order of rows.
    Sort,
    /// Determines rows or their order within a window.
    Window,
}

impl Transformation {
    /// Whether the column's value contributes, rather than only a decision.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Identity | Self::Transformation | Self::Aggregation)
    }
}

/// An input column and its contribution.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ColumnUse {
    /// The input port.
    pub port: String,
    /// The column's name.
    pub column: String,
    /// How it contributes.
    pub how: Transformation,
}

/// Sources of the columns of one output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnLineage {
    /// By output column.
    pub fields: BTreeMap<String, BTreeSet<ColumnUse>>,
    /// Columns that determine which rows exist and in which order.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rows: BTreeSet<ColumnUse>,
}
