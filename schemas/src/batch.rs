//! Conversion between row structs and record batches.

use arrow::array::RecordBatch;

use crate::record::{Record, SchemaError};

/// Converts rows to one record batch with exactly the kind's columns.
///
/// # Errors
/// If a value does not fit its column (impossible for the row structs of this crate).
pub fn to_batch<R: Record>(rows: &[R]) -> Result<RecordBatch, SchemaError> {
    let schema = R::KIND.schema();
    let batch = serde_arrow::to_record_batch(schema.fields(), &rows)
        .map_err(|error| SchemaError(format!("cannot make {} rows: {error}", R::KIND)))?;
    RecordBatch::try_new(schema, batch.columns().to_vec())
        .map_err(|error| SchemaError(format!("cannot make {} rows: {error}", R::KIND)))
}

/// Converts one record batch to rows; ignores columns that the kind does not define.
///
/// # Errors
/// If a required column is missing or has another type.
pub fn from_batch<R: Record>(batch: &RecordBatch) -> Result<Vec<R>, SchemaError> {
    let known = crate::compat::conform(R::KIND, batch)?;
    serde_arrow::from_record_batch(&known)
        .map_err(|error| SchemaError(format!("cannot read {} rows: {error}", R::KIND)))
}
