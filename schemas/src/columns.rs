//! Typed access to columns by name, for kernels that work column-wise.

use arrow::array::{Array, AsArray, Float64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Float64Type;

use crate::record::SchemaError;

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array, SchemaError> {
    batch.column_by_name(name).map(AsRef::as_ref).ok_or_else(|| SchemaError(format!("there is no column `{name}`")))
}

fn wrong(name: &str, wanted: &str, array: &dyn Array) -> SchemaError {
    SchemaError(format!("column `{name}` must be {wanted}, found {}", array.data_type()))
}

/// Returns a text column (Utf8).
///
/// # Errors
/// If it is missing or has another type.
pub fn text_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray, SchemaError> {
    let array = column(batch, name)?;
    array.as_string_opt::<i32>().ok_or_else(|| wrong(name, "text", array))
}

/// Returns a column of 64-bit floats.
///
/// # Errors
/// If it is missing or has another type.
pub fn f64_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a Float64Array, SchemaError> {
    let array = column(batch, name)?;
    array.as_primitive_opt::<Float64Type>().ok_or_else(|| wrong(name, "a number", array))
}

/// Returns a column of text lists.
///
/// # Errors
/// If it is missing or has another type.
pub fn list_text_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ListArray, SchemaError> {
    let array = column(batch, name)?;
    array.as_list_opt::<i32>().ok_or_else(|| wrong(name, "a list of text", array))
}

/// Returns the text at `row`, or `None` for null.
#[must_use]
pub fn text_value(array: &StringArray, row: usize) -> Option<&str> {
    array.is_valid(row).then(|| array.value(row))
}
