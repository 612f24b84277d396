//! Checks that a batch fits a kind. Columns are matched by name; string encodings and list field names are cast.

use arrow::array::RecordBatch;

use crate::faithful::{cast_exactly, name_twice};
use crate::record::{RecordKind, SchemaError};

/// Returns the kind's columns of `batch`, in the kind's order, cast to its types (`Utf8View` to `Utf8`, list item
/// names, …). For `Table`, returns the batch unchanged.
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
