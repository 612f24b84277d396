//! Record kinds: the versioned Arrow schemas of all rows that flow between nodes.
//!
//! A [`RecordKind`] defines the columns that a table of this kind must have; additional columns are allowed. Each
//! kind has a row struct (`Document`, `Chunk`, …) that converts to and from Arrow with [`to_batch`] and
//! [`from_batch`]. Rows name their parents by id (`chunk.document_id`, `trajectory.question_id`, …), so lineage can
//! be traced by row.
//!
//! This crate uses serde and serde_arrow beside arrow. Conversions of nested rows written by hand would be more code than
//! all schemas together.

mod batch;
mod describe;
mod described;
mod faithful;
mod named;
mod parents;
mod record;

mod chunk;
mod document;
mod example;
mod hit;
mod metric;
mod pair;
mod question;
mod reject;
mod score;
mod tokens;
mod trajectory;

pub use batch::{conform, from_batch, text_column, text_value, to_batch};
pub use chunk::Chunk;
pub use described::{Column, type_in_words};
pub use document::Document;
pub use example::Example;
pub use faithful::{
    bytes_as_text, cast_exactly, decimals_as_text, has_bytes, name_twice, unfit_for_json, with_bytes_as_text,
};
pub use hit::{Hit, HitSource};
pub use metric::Metric;
pub use pair::Pair;
pub use parents::{ParentColumn, gathered, gathered_id, repeated_id};
pub use question::{Evidence, Question};
pub use record::{Record, RecordKind, SchemaError, renamed};
pub use reject::Reject;
pub use score::Score;
pub use tokens::{CutObservation, CutObservations, RecordedTokens, SampledWith, TokenSpan};
pub use trajectory::{Message, Observation, Role, ToolCall, Trajectory, in_turns};
