//! Typed access to columns by name, for kernels that work column-wise.

use arrow::array::{Array, AsArray, RecordBatch, StringArray};

use crate::record::SchemaError;

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
