//! Columns that an operator adds to the rows it receives; rows as JSON.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, StringArray, StructArray, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::json::writer::{LineDelimited, WriterBuilder};
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::{RecordKind, SchemaError, conform, text_value, with_bytes_as_text};

/// The column of rollouts that counts the calls that services failed to answer.
pub(crate) const TOOL_ERRORS: &str = "tool_errors";

/// Returns the rows with these columns at the end. They replace columns of the same names, which an earlier run of the
/// operator may have left.
pub(crate) fn with_columns(batch: &RecordBatch, new: Vec<(Field, ArrayRef)>) -> Result<RecordBatch, OperatorError> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        if new.iter().all(|(other, _)| other.name() != field.name()) {
            fields.push(Arc::clone(field));
            arrays.push(Arc::clone(array));
        }
    }
    for (field, array) in new {
        fields.push(Arc::new(field));
        arrays.push(array);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

/// Returns the rows without a column, if they have it.
pub(crate) fn without(batch: &RecordBatch, name: &str) -> Result<RecordBatch, OperatorError> {
    let schema = batch.schema();
    let places: Vec<usize> = (0..batch.num_columns()).filter(|place| schema.field(*place).name() != name).collect();
    if places.len() == batch.num_columns() { Ok(batch.clone()) } else { Ok(batch.project(&places)?) }
}

/// Returns the columns of [`with_columns`].
pub(crate) fn with_fields(schema: &Schema, new: &[Field]) -> Arc<Schema> {
    let mut fields = schema.fields().to_vec();
    fields.retain(|field| new.iter().all(|other| other.name() != field.name()));
    fields.extend(new.iter().cloned().map(Arc::new));
    Arc::new(Schema::new(fields))
}

/// Returns the columns of rows of a kind that neither the kind nor `taken` has.
pub(crate) fn extra(all: &RecordBatch, kind: RecordKind, taken: &Schema) -> Result<Option<RecordBatch>, OperatorError> {
    let indices = extra_indices(&all.schema(), kind, taken);
    if indices.is_empty() { Ok(None) } else { Ok(Some(all.project(&indices)?)) }
}

fn extra_indices(from: &Schema, kind: RecordKind, taken: &Schema) -> Vec<usize> {
    let own = kind.schema();
    let mut indices: Vec<usize> = (0..from.fields().len()).collect();
    indices.retain(|index| {
        let name = from.field(*index).name();
        own.column_with_name(name).is_none() && taken.column_with_name(name).is_none()
    });
    indices
}

/// Adds the extra columns of `from` to rows made from it; `rows`: the row of `from` behind each. Columns that the new rows
/// have themselves are not replaced.
pub(crate) fn carried(
    new: &RecordBatch,
    from: &RecordBatch,
    kind: RecordKind,
    rows: Vec<u32>,
) -> Result<RecordBatch, OperatorError> {
    match extra(from, kind, &new.schema())? {
        None => Ok(new.clone()),
        Some(extra) => with_all(new, &take_record_batch(&extra, &UInt32Array::from(rows))?),
    }
}

/// Returns the columns of [`carried`].
pub(crate) fn carried_fields(new: &Schema, from: &Schema, kind: RecordKind) -> Arc<Schema> {
    let extra = extra_indices(from, kind, new);
    with_fields(new, &extra.into_iter().map(|index| from.field(index).clone()).collect::<Vec<_>>())
}

/// Casts the kind's columns to its types and puts them first; other columns follow unchanged.
///
/// # Errors
/// Fails as [`conform`] does.
pub(crate) fn conformed(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, SchemaError> {
    let own = conform(kind, batch)?;
    let all = match extra(batch, kind, &own.schema()) {
        Ok(Some(others)) => with_all(&own, &others),
        Ok(None) => Ok(own),
        Err(error) => Err(error),
    };
    all.map_err(|error| SchemaError(error.message))
}

/// Returns the rows with the columns of `new`, which has as many rows, at the end.
pub(crate) fn with_all(batch: &RecordBatch, new: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let fields = new.schema();
    let fields = fields.fields().iter().map(|field| field.as_ref().clone());
    with_columns(batch, fields.zip(new.columns().iter().cloned()).collect())
}

/// Returns a column of lists of objects: the rows of `items`, as many in turn as `lengths` say. Nothing in it is null.
pub(crate) fn lists(items: RecordBatch, lengths: Vec<usize>) -> ArrayRef {
    let items = StructArray::from(items);
    let item = Arc::new(Field::new("item", items.data_type().clone(), false));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(items), None))
}

/// Returns the rows as JSON, an object with all columns in a line for each. `param` stands before an error.
pub(crate) fn json_lines(batch: &RecordBatch, param: &str) -> Result<Vec<u8>, OperatorError> {
    let mut text = Vec::new();
    // Nulls are written too: all lines have the same fields, and in a template a name left out would be unknown.
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
    let texts = with_bytes_as_text(batch).map_err(|(column, _)| {
        let help = format!("encode it by `sql`: `encode({column}, 'base64')`");
        OperatorError::data(format!("{param}the column `{column}` holds bytes that are not UTF-8 text")).with_help(help)
    })?;
    writer.write(&texts).and_then(|()| writer.finish())?;
    Ok(text)
}

/// Returns the column `id` if it is text.
pub(crate) fn id_column(batch: &RecordBatch) -> Option<StringArray> {
    let ids = batch.column_by_name("id")?;
    // Numbers would cast to texts, but are no ids.
    if !ids.data_type().is_string() {
        return None;
    }
    cast(ids, &DataType::Utf8).ok()?.as_string_opt::<i32>().cloned()
}

/// Returns the id at `row`, if there is one.
pub(crate) fn id_at(ids: Option<&StringArray>, row: usize) -> Option<String> {
    Some(text_value(ids?, row)?.to_owned())
}
