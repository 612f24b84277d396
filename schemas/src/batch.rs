//! Conversion between row structs and record batches; typed access to columns by name, for kernels that work column-wise.

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use serde::Serialize;

use crate::record::{Record, SchemaError};

/// Converts rows to one record batch with exactly the kind's columns.
///
/// # Errors
/// If a value does not fit its column (impossible for the row structs of this crate).
pub fn to_batch<R: Record>(rows: &[R]) -> Result<RecordBatch, SchemaError> {
    made(R::KIND.schema(), rows).map_err(|error| SchemaError(format!("cannot make {} rows: {error}", R::KIND)))
}

/// Converts rows to one record batch with exactly these columns.
pub(crate) fn made<R: Serialize>(schema: SchemaRef, rows: &[R]) -> Result<RecordBatch, String> {
    let batch = serde_arrow::to_record_batch(schema.fields(), &rows).map_err(|error| error.to_string())?;
    RecordBatch::try_new(schema, batch.columns().to_vec()).map_err(|error| error.to_string())
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

/// Returns a text column (Utf8).
///
/// # Errors
/// If it is missing or has another type.
pub fn text_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray, SchemaError> {
    let Some(array) = batch.column_by_name(name) else {
        return Err(SchemaError(format!("there is no column `{name}`")));
    };
    let Some(texts) = array.as_string_opt::<i32>() else {
        return Err(SchemaError(format!("column `{name}` must be text, found {}", array.data_type())));
    };
    Ok(texts)
}

/// Returns the text at `row`, or `None` for null.
pub fn text_value(array: &StringArray, row: usize) -> Option<&str> {
    array.is_valid(row).then(|| array.value(row))
}
