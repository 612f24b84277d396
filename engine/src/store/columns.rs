//! Column lineage: which columns of a node's inputs make the columns of its outputs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// How a column of an input enters. Names and meaning follow OpenLineage's column lineage facet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transformation {
    /// The value itself.
    Identity,
    /// The value goes into an expression.
    Transformation,
    /// The values of several rows go into one.
    Aggregation,
    /// It decides which branch of an expression counts.
    Conditional,
    /// It decides which rows there are.
    Filter,
    /// It decides which rows are put together.
    Join,
    /// It decides which rows are taken as one.
    GroupBy,
    /// It decides the order of rows.
    Sort,
    /// It decides the rows or their order within a window.
    Window,
}

impl Transformation {
    /// Does the column's value enter, rather than only decide something?
    #[must_use]
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Identity | Self::Transformation | Self::Aggregation)
    }

    /// The name in OpenLineage (`subtype`).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "IDENTITY",
            Self::Transformation => "TRANSFORMATION",
            Self::Aggregation => "AGGREGATION",
            Self::Conditional => "CONDITIONAL",
            Self::Filter => "FILTER",
            Self::Join => "JOIN",
            Self::GroupBy => "GROUP_BY",
            Self::Sort => "SORT",
            Self::Window => "WINDOW",
        }
    }
}

/// One column of an input, and how it enters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ColumnUse {
    /// The input port.
    pub port: String,
    /// The column there.
    pub column: String,
    /// How it enters.
    pub how: Transformation,
}

/// What the columns of one output come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnLineage {
    /// By column of the output.
    pub fields: BTreeMap<String, BTreeSet<ColumnUse>>,
    /// What decides which rows there are, and in which order.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rows: BTreeSet<ColumnUse>,
}
