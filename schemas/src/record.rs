//! Record kinds, and the conversion between row structs and record batches.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of row. `Table` is the open kind: any columns, as `sql` and `join` make them.
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
    /// One rollout: every turn, tool call and observation.
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

/// What is wrong with a batch, in words for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError(pub String);

impl std::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SchemaError {}

impl RecordKind {
    /// Every kind, in the order of the pipeline that makes them.
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

    /// The singular name used in YAML (`as: document`) and messages.
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

    /// The kind of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Version of the schema: part of every node key, so a changed schema is never read as the old one.
    #[must_use]
    pub fn version(self) -> u32 {
        1
    }

    /// The column whose values are unique in a table of this kind, if there is one. The other kinds repeat the ids of
    /// what they are about.
    #[must_use]
    pub fn id_column(self) -> Option<&'static str> {
        match self {
            Self::Document | Self::Chunk | Self::Question | Self::Trajectory | Self::Example => Some("id"),
            Self::Hit | Self::Score | Self::Metric | Self::Reject | Self::Table => None,
        }
    }

    /// The columns that a table of this kind must have (none for `Table`).
    #[must_use]
    pub fn schema(self) -> SchemaRef {
        let fields = match self {
            Self::Document => crate::document::fields(),
            Self::Chunk => crate::chunk::fields(),
            Self::Question => crate::question::fields(),
            Self::Hit => crate::hit::fields(),
            Self::Trajectory => crate::trajectory::fields(),
            Self::Score => crate::score::fields(),
            Self::Example => crate::example::fields(),
            Self::Metric => crate::metric::fields(),
            Self::Reject => crate::reject::fields(),
            Self::Table => Vec::new(),
        };
        Arc::new(Schema::new(fields))
    }
}

impl std::fmt::Display for RecordKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A row struct of a fixed kind.
pub trait Record: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// Its kind.
    const KIND: RecordKind;
}

/// Rows to one record batch with exactly the kind's columns.
///
/// # Errors
/// When a value does not fit its column (never for rows made by this crate's structs).
pub fn to_batch<R: Record>(rows: &[R]) -> Result<RecordBatch, SchemaError> {
    let schema = R::KIND.schema();
    let batch = serde_arrow::to_record_batch(schema.fields(), &rows)
        .map_err(|error| SchemaError(format!("cannot make {} rows: {error}", R::KIND)))?;
    RecordBatch::try_new(schema, batch.columns().to_vec())
        .map_err(|error| SchemaError(format!("cannot make {} rows: {error}", R::KIND)))
}

/// One record batch to rows; columns that the kind does not know are ignored.
///
/// # Errors
/// When a required column is missing or of another type.
pub fn from_batch<R: Record>(batch: &RecordBatch) -> Result<Vec<R>, SchemaError> {
    let known = crate::compat::conform(R::KIND, batch)?;
    serde_arrow::from_record_batch(&known)
        .map_err(|error| SchemaError(format!("cannot read {} rows: {error}", R::KIND)))
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
