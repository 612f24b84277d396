//! Record kinds, the trait of their row structs, and the Arrow fields that compose their columns.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of row. `Table` is the open kind, with any columns, as output by `sql` and `join`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKind {
    /// A text with an id and a title.
    Document,
    /// A piece of a document, the unit of retrieval.
    Chunk,
    /// A question with golden answers and evidence.
    Question,
    /// One retrieved chunk for one query.
    Hit,
    /// One rollout: every message, tool call and observation.
    Trajectory,
    /// The answer metrics of one trajectory.
    Score,
    /// One training example, ready to be written.
    Example,
    /// One aggregated figure with its interval.
    Metric,
    /// A row that failed, with the reason.
    Reject,
    /// Any columns.
    Table,
}

/// A schema mismatch of a batch, described for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError(pub String);

impl std::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SchemaError {}

impl RecordKind {
    /// All kinds, in pipeline order.
    pub const ALL: [Self; 10] = [
        Self::Document,
        Self::Chunk,
        Self::Question,
        Self::Hit,
        Self::Trajectory,
        Self::Score,
        Self::Example,
        Self::Metric,
        Self::Reject,
        Self::Table,
    ];

    /// Singular name used in YAML (`as: document`) and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Document => "document",
            Self::Chunk => "chunk",
            Self::Question => "question",
            Self::Hit => "hit",
            Self::Trajectory => "trajectory",
            Self::Score => "score",
            Self::Example => "example",
            Self::Metric => "metric",
            Self::Reject => "reject",
            Self::Table => "table",
        }
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Version of the schema. Part of every node key, so that a changed schema is never read as the old one.
    #[must_use]
    pub fn version(self) -> u32 {
        match self {
            Self::Trajectory => 2,
            _ => 1,
        }
    }

    /// Column with unique values in a table of this kind, if any. Rows of the other kinds repeat the ids of the rows
    /// they describe.
    #[must_use]
    pub fn id_column(self) -> Option<&'static str> {
        match self {
            Self::Document | Self::Chunk | Self::Question | Self::Trajectory | Self::Example => Some("id"),
            Self::Hit | Self::Score | Self::Metric | Self::Reject | Self::Table => None,
        }
    }
}

impl std::fmt::Display for RecordKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the current name of a column (or nested field) that was renamed since an earlier version.
#[must_use]
pub fn renamed(former: &str) -> Option<&'static str> {
    match former {
        "rounds" => Some("turns"),
        "author" => Some("role"),
        _ => None,
    }
}

/// A row struct of a fixed kind.
pub trait Record: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// Kind of the row struct.
    const KIND: RecordKind;
}

pub(crate) fn required(name: &str, data_type: DataType) -> FieldRef {
    Arc::new(Field::new(name, data_type, false))
}

pub(crate) fn optional(name: &str, data_type: DataType) -> FieldRef {
    Arc::new(Field::new(name, data_type, true))
}

pub(crate) fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, false)))
}

pub(crate) fn struct_of(fields: Vec<FieldRef>) -> DataType {
    DataType::Struct(Fields::from(fields))
}
