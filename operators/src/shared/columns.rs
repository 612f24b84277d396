//! Columns that an operator adds to the rows it receives.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::{RecordKind, SchemaError, conform};

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

/// Returns the rows without a column, if they have it.
pub(crate) fn without(batch: &RecordBatch, name: &str) -> Result<RecordBatch, OperatorError> {
    let schema = batch.schema();
    let places: Vec<usize> = (0..batch.num_columns()).filter(|place| schema.field(*place).name() != name).collect();
    if places.len() == batch.num_columns() { Ok(batch.clone()) } else { Ok(batch.project(&places)?) }
}

/// Returns the columns of [`with_columns`].
pub(crate) fn with_fields(schema: &Schema, new: &[Field]) -> Arc<Schema> {
    let is_new = |name: &str| new.iter().any(|field| field.name() == name);
    let kept = schema.fields().iter().filter(|field| !is_new(field.name())).cloned();
    Arc::new(Schema::new(kept.chain(new.iter().cloned().map(Arc::new)).collect::<Vec<_>>()))
}

/// Returns the columns of rows of a kind that neither the kind nor `taken` has.
pub(crate) fn extra(
    from: &RecordBatch,
    kind: RecordKind,
    taken: &Schema,
) -> Result<Option<RecordBatch>, OperatorError> {
    let schema = from.schema();
    let places: Vec<usize> = extra_places(&schema, kind, taken).collect();
    if places.is_empty() { Ok(None) } else { Ok(Some(from.project(&places)?)) }
}

fn extra_places(from: &Schema, kind: RecordKind, taken: &Schema) -> impl Iterator<Item = usize> {
    let own = kind.schema();
    let is_extra =
        move |field: &Field| [&*own, taken].iter().all(|known| known.column_with_name(field.name()).is_none());
    from.fields().iter().enumerate().filter(move |(_, field)| is_extra(field)).map(|(place, _)| place)
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
    let extra: Vec<Field> = extra_places(from, kind, new).map(|place| from.field(place).clone()).collect();
    with_fields(new, &extra)
}

/// Casts the kind's columns to its types and puts them first; other columns follow unchanged.
///
/// # Errors
/// Fails as [`conform`] does.
pub(crate) fn conformed(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, SchemaError> {
    let own = conform(kind, batch)?;
    if kind == RecordKind::Table {
        return Ok(own);
    }
    let schema = batch.schema();
    let others =
        schema.fields().iter().zip(batch.columns()).filter(|(field, _)| own.column_by_name(field.name()).is_none());
    let (others, columns): (Vec<_>, Vec<_>) =
        others.map(|(field, column)| (Arc::clone(field), Arc::clone(column))).unzip();
    let fields: Vec<_> = own.schema().fields().iter().cloned().chain(others).collect();
    let columns = own.columns().iter().cloned().chain(columns).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|error| SchemaError(error.to_string()))
}

/// Returns the rows with the columns of `new`, which has as many rows, at the end.
pub(crate) fn with_all(batch: &RecordBatch, new: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let fields = new.schema();
    let fields = fields.fields().iter().map(|field| field.as_ref().clone());
    with_columns(batch, fields.zip(new.columns().iter().cloned()).collect())
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
