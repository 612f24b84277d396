//! Record kinds, and the trait of their row structs.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::named;

named! {
    /// A kind of row, in pipeline order. `Table` is the open kind, with any columns, as output by `sql` and `join`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum RecordKind {
        /// A text with an id and a title.
        Document = "document",
        /// A piece of a document, the unit of retrieval.
        Chunk = "chunk",
        /// A question with golden answers and evidence.
        Question = "question",
        /// One retrieved chunk for one query.
        Hit = "hit",
        /// One rollout: every message, tool call and observation.
        Trajectory = "trajectory",
        /// The answer metrics of one trajectory.
        Score = "score",
        /// Two rollouts of a question, one better than the other.
        Pair = "pair",
        /// One training example, ready to be written.
        Example = "example",
        /// One aggregated figure with its interval.
        Metric = "metric",
        /// A row that failed, with the reason.
        Reject = "reject",
        /// Any columns.
        Table = "table",
    }
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
    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Version of the schema. Part of every node key, so that a changed schema is never read as the old one.
    pub fn version(self) -> u32 {
        match self {
            Self::Trajectory => 2,
            _ => 1,
        }
    }

    /// Column with unique values in a table of this kind, if any. Rows of the other kinds repeat the ids of the rows
    /// they describe.
    pub fn id_column(self) -> Option<&'static str> {
        match self {
            Self::Document | Self::Chunk | Self::Question | Self::Trajectory | Self::Pair | Self::Example => Some("id"),
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
