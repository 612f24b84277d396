//! Columns of the rollouts in training rows: all extra ones in the table of examples, named ones in the rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::Schema;
use searchmill_engine::operator::{Declaration, OperatorError, ParamIssue};
use searchmill_schemas::RecordKind;
use searchmill_text::json::Json;

use crate::pair::REJECTED;
use crate::shared::columns::{extra, json_lines, with_all};
use crate::shared::relation::columns_checked;

/// Values of one row, by column.
pub(crate) type Values = Vec<(String, Json)>;

/// Returns the values of these columns for each row.
pub(crate) fn values(batch: &RecordBatch, names: &[String]) -> Result<Vec<Values>, OperatorError> {
    if names.is_empty() {
        return Ok(vec![Values::new(); batch.num_rows()]);
    }
    let mut values = Vec::with_capacity(batch.num_rows());
    for line in lines(batch, names)?.lines() {
        let row = Json::parse(line).map_err(OperatorError::engine)?;
        values.push(names.iter().map(|name| (name.clone(), row.get(name).cloned().unwrap_or(Json::Null))).collect());
    }
    Ok(values)
}

/// Returns the values of these columns, an object of JSON in a line for each row.
pub(crate) fn lines(batch: &RecordBatch, names: &[String]) -> Result<String, OperatorError> {
    let lines = json_lines(&columns(batch, names)?, "`carry`: ")?;
    String::from_utf8(lines).map_err(|error| OperatorError::engine(error.to_string()))
}

/// Returns these columns.
pub(crate) fn columns(batch: &RecordBatch, names: &[String]) -> Result<RecordBatch, OperatorError> {
    Ok(batch.project(&indices(&batch.schema(), names)?)?)
}

fn indices(schema: &Schema, names: &[String]) -> Result<Vec<usize>, OperatorError> {
    let mut indices = Vec::with_capacity(names.len());
    for name in names {
        let Ok(index) = schema.index_of(name) else {
            let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            let error = OperatorError::pipeline(format!("`carry`: there is no column `{name}`"));
            return Err(error.with_help(searchmill_engine::suggest(name, &known, "columns")));
        };
        indices.push(index);
    }
    Ok(indices)
}

/// Writes values into a training row.
pub(crate) fn put(row: &mut Json, values: &[(String, Json)]) -> Result<(), OperatorError> {
    let Json::Object(entries) = row else { return Ok(()) };
    for (name, value) in values {
        if entries.insert(name.clone(), value.clone()).is_some() {
            let message = format!("`carry`: the training rows already have a field `{name}`");
            return Err(OperatorError::pipeline(message).with_help("rename the column by `sql`"));
        }
    }
    Ok(())
}

/// Checks `carry` against the columns of the input at `port`.
pub(crate) fn checked(declaration: Declaration, port: &'static str, carry: &[String]) -> Declaration {
    let mut repeated = Vec::new();
    for (index, name) in carry.iter().enumerate() {
        if carry[..index].contains(name) {
            repeated.push(ParamIssue::new(format!("carry.{index}"), format!("the column `{name}` is there twice")));
        }
    }
    let names = carry.to_vec();
    declaration.issues(repeated).checks_columns(move |tables| {
        columns_checked(tables, port, |schema| indices(schema, &names)).into_iter().collect()
    })
}

/// Adds the extra columns of rows of a kind to examples made from them. `views`: these rows, or one table for each side of
/// pairs; `origins`: the view and the row behind each example.
pub(crate) fn with_extra(
    examples: &RecordBatch,
    views: &[RecordBatch],
    kind: RecordKind,
    origins: &[(usize, usize)],
) -> Result<RecordBatch, OperatorError> {
    let others = views.iter().map(|view| extra(view, kind, &examples.schema())).collect::<Result<Vec<_>, _>>()?;
    let others: Vec<&RecordBatch> = others.iter().flatten().collect();
    if others.is_empty() || others.len() < views.len() {
        return Ok(examples.clone());
    }
    with_all(examples, &interleave_record_batch(&others, origins)?)
}

/// Returns pairs with the other columns of one side alone, under their names.
pub(crate) fn side(pairs: &RecordBatch, is_rejected: bool) -> Result<RecordBatch, OperatorError> {
    let (schema, own) = (pairs.schema(), RecordKind::Pair.schema());
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in schema.fields().iter().zip(pairs.columns()) {
        let name = field.name();
        let is_own = own.column_with_name(name).is_some();
        // A column of the rejected side stands beside that of the chosen one, and is no column of its own.
        if !is_own && name.strip_prefix(REJECTED).is_some_and(|chosen| schema.column_with_name(chosen).is_some()) {
            continue;
        }
        let other = if is_rejected && !is_own { pairs.column_by_name(&format!("{REJECTED}{name}")) } else { None };
        columns.push(Arc::clone(other.unwrap_or(column)));
        fields.push(Arc::clone(field));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
