//! Checks that a batch fits a kind. Columns are matched by name; string encodings and list field names are cast.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{FieldRef, Schema};

use crate::record::{RecordKind, SchemaError};

/// Returns the kind's columns of `batch`, in the kind's order, cast to its types (`Utf8View` to `Utf8`, list item
/// names, …). For `Table`, returns the batch unchanged.
///
/// # Errors
/// Names all missing columns, otherwise the first column that has invalid nulls or cannot be cast.
pub fn conform(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, SchemaError> {
    if kind == RecordKind::Table {
        return Ok(batch.clone());
    }
    let wanted = kind.schema();
    if batch.schema().fields() == wanted.fields() {
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
    let columns = wanted
        .fields()
        .iter()
        .map(|field| {
            let column = batch.column_by_name(field.name()).ok_or_else(|| {
                SchemaError(format!("{kind} rows need a column `{}`; found: {}", field.name(), names(batch)))
            })?;
            let column = if column.data_type() == field.data_type() {
                Arc::clone(column)
            } else {
                cast(column, field.data_type()).map_err(|_| {
                    SchemaError(format!(
                        "column `{}` of {kind} rows must be {}, found {}",
                        field.name(),
                        field.data_type(),
                        column.data_type()
                    ))
                })?
            };
            if !field.is_nullable() && column.null_count() > 0 {
                return Err(SchemaError(format!(
                    "column `{}` of {kind} rows may not be null ({} nulls)",
                    field.name(),
                    column.null_count()
                )));
            }
            Ok(column)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Schema::new(wanted.fields().clone()));
    RecordBatch::try_new(schema, columns).map_err(|error| SchemaError(error.to_string()))
}

fn names(batch: &RecordBatch) -> String {
    let schema = batch.schema();
    schema.fields().iter().map(|field| format!("`{}`", field.name())).collect::<Vec<_>>().join(", ")
}
