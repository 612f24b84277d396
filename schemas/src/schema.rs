//! The Arrow schema of each record kind.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};

use crate::record::RecordKind;

impl RecordKind {
    /// Returns the columns that a table of this kind must have (empty for `Table`).
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
