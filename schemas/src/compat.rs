//! Checks that a batch fits a kind. Columns are matched by name; string encodings and list field names are cast.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, FieldRef};

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
    let lacks = |field: &&FieldRef| batch.column_by_name(field.name()).is_none();
    let missing: Vec<String> =
        wanted.fields().iter().filter(lacks).map(|field| format!("`{}`", field.name())).collect();
    if !missing.is_empty() {
        let word = if missing.len() == 1 { "a column" } else { "the columns" };
        let message = format!("{kind} rows need {word} {}; found: {}", missing.join(", "), names(batch));
        return Err(SchemaError(message));
    }
    let fields = wanted.fields().iter();
    let columns = fields.filter_map(|field| Some(fitted(kind, field, batch.column_by_name(field.name())?)));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(wanted, columns).map_err(|error| SchemaError(error.to_string()))
}

fn fitted(kind: RecordKind, field: &Field, column: &ArrayRef) -> Result<ArrayRef, SchemaError> {
    let (name, wanted, found) = (field.name(), field.data_type(), column.data_type());
    let wrong = |error: SchemaError| {
        SchemaError(format!("column `{name}` of {kind} rows must be {wanted}, found {found}: {error}"))
    };
    let column = cast_exactly(column, wanted).map_err(wrong)?;
    match column.null_count() {
        nulls if nulls > 0 && !field.is_nullable() => {
            Err(SchemaError(format!("column `{name}` of {kind} rows may not be null ({nulls} nulls)")))
        }
        _ => Ok(column),
    }
}

fn names(batch: &RecordBatch) -> String {
    let schema = batch.schema();
    schema.fields().iter().map(|field| format!("`{}`", field.name())).collect::<Vec<_>>().join(", ")
}
