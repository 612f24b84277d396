//! Columns that an operator adds to the rows it receives.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use searchmill_engine::operator::OperatorError;

/// The column of rollouts that counts the calls that services failed to answer.
pub(crate) const TOOL_ERRORS: &str = "tool_errors";

/// Returns the rows with these columns at the end. They replace columns of the same names, which an earlier run of the
/// operator may have left.
pub(crate) fn with_columns(batch: &RecordBatch, new: Vec<(Field, ArrayRef)>) -> Result<RecordBatch, OperatorError> {
    let is_new = |name: &str| new.iter().any(|(field, _)| field.name() == name);
    let schema = batch.schema();
    let kept = schema.fields().iter().zip(batch.columns()).filter(|(field, _)| !is_new(field.name()));
    let kept: Vec<_> = kept.map(|(field, array)| (Arc::clone(field), Arc::clone(array))).collect();
    let new = new.into_iter().map(|(field, array)| (Arc::new(field), array));
    let (fields, arrays): (Vec<_>, Vec<_>) = kept.into_iter().chain(new).unzip();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

/// Returns the rows with the columns of `new`, which has as many rows, at the end.
pub(crate) fn with_all(batch: &RecordBatch, new: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let fields = new.schema();
    let fields = fields.fields().iter().map(|field| field.as_ref().clone());
    with_columns(batch, fields.zip(new.columns().iter().cloned()).collect())
}
