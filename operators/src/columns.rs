//! Columns that an operator adds to the rows it receives.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
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

/// Returns the column `id` if it is text.
pub(crate) fn id_column(batch: &RecordBatch) -> Option<StringArray> {
    let ids = batch.column_by_name("id")?;
    let text = matches!(ids.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    text.then(|| cast(ids, &DataType::Utf8).ok()?.as_string_opt::<i32>().cloned())?
}

/// Returns the id at `row`, if there is one.
pub(crate) fn id_at(ids: Option<&StringArray>, row: usize) -> Option<String> {
    ids.filter(|ids| ids.is_valid(row)).map(|ids| ids.value(row).to_owned())
}
