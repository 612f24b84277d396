//! Record batches of a kind: conversion from and to row structs, the check that a batch fits its kind, and typed access to
//! columns by name for kernels that work column-wise.

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use serde::Serialize;

use crate::faithful::{cast_exactly, name_twice};
use crate::record::{Record, RecordKind, SchemaError};

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
    let known = conform(R::KIND, batch)?;
    serde_arrow::from_record_batch(&known)
        .map_err(|error| SchemaError(format!("cannot read {} rows: {error}", R::KIND)))
}

/// Returns the kind's columns of `batch`, in the kind's order, cast to its types (`Utf8View` to `Utf8`, list item
/// names, …). Columns are matched by name. For `Table`, returns the batch unchanged.
///
/// # Errors
/// Names a column that stands twice, or all missing columns, otherwise the first column that has invalid nulls or a value
/// that the kind's type cannot hold.
pub fn conform(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, SchemaError> {
    let wanted = kind.schema();
    // Equal fields, nullability included: nothing is left to check.
    if kind != RecordKind::Table && batch.schema().fields() == wanted.fields() {
        return Ok(batch.clone());
    }
    // By name, only the first of two columns would be found.
    if let Some(name) = name_twice(batch.schema().fields()) {
        return Err(SchemaError(format!("there are two columns `{name}`: rename one of them")));
    }
    if kind == RecordKind::Table {
        return Ok(batch.clone());
    }
    let (mut present, mut missing) = (Vec::new(), Vec::new());
    for field in wanted.fields() {
        match batch.column_by_name(field.name()) {
            Some(column) => present.push(column),
            None => missing.push(format!("`{}`", field.name())),
        }
    }
    if !missing.is_empty() {
        let word = if missing.len() == 1 { "a column" } else { "the columns" };
        let schema = batch.schema();
        let found = schema.fields().iter().map(|field| format!("`{}`", field.name())).collect::<Vec<_>>().join(", ");
        return Err(SchemaError(format!("{kind} rows need {word} {}; found: {found}", missing.join(", "))));
    }
    let mut columns = Vec::with_capacity(present.len());
    for (field, column) in wanted.fields().iter().zip(present) {
        let (name, fit, found) = (field.name(), field.data_type(), column.data_type());
        let column = cast_exactly(column, fit).map_err(|error| {
            SchemaError(format!("column `{name}` of {kind} rows must be {fit}, found {found}: {error}"))
        })?;
        let nulls = column.null_count();
        if nulls > 0 && !field.is_nullable() {
            return Err(SchemaError(format!("column `{name}` of {kind} rows may not be null ({nulls} nulls)")));
        }
        columns.push(column);
    }
    RecordBatch::try_new(wanted, columns).map_err(|error| SchemaError(error.to_string()))
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
