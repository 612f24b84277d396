//! Columns of the rollouts in training rows: all extra ones in the table of examples, named ones in the rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::Schema;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use searchmill_engine::operator::{Declaration, OperatorError, ParamIssue};
use searchmill_schemas::{RecordKind, with_bytes_as_text};
use searchmill_text::json::Json;

use crate::pair::REJECTED;
use crate::shared::columns::{extra, with_all};
use crate::shared::relation::columns_checked;

/// Values of one row, by column.
pub(crate) type Values = Vec<(String, Json)>;

/// Returns the values of these columns for each row.
pub(crate) fn values(batch: &RecordBatch, names: &[String]) -> Result<Vec<Values>, OperatorError> {
    if names.is_empty() {
        return Ok(vec![Values::new(); batch.num_rows()]);
    }
    lines(batch, names)?.lines().map(|line| row_values(line, names)).collect()
}

/// Returns the values of these columns, an object of JSON in a line for each row.
pub(crate) fn lines(batch: &RecordBatch, names: &[String]) -> Result<String, OperatorError> {
    let mut text = Vec::new();
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
    let carried = with_bytes_as_text(&columns(batch, names)?).map_err(|(column, _)| {
        let help = format!("encode it by `sql`: `encode({column}, 'base64')`");
        OperatorError::data(format!("`carry`: the column `{column}` holds bytes that are not UTF-8 text"))
            .with_help(help)
    })?;
    writer.write(&carried)?;
    writer.finish()?;
    drop(writer);
    String::from_utf8(text).map_err(|error| OperatorError::engine(error.to_string()))
}

/// Returns these columns.
pub(crate) fn columns(batch: &RecordBatch, names: &[String]) -> Result<RecordBatch, OperatorError> {
    let places = names.iter().map(|name| place(&batch.schema(), name)).collect::<Result<Vec<_>, _>>()?;
    Ok(batch.project(&places)?)
}

fn place(schema: &Schema, name: &str) -> Result<usize, OperatorError> {
    schema.index_of(name).map_err(|_| {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let error = OperatorError::pipeline(format!("`carry`: there is no column `{name}`"));
        error.with_help(searchmill_engine::suggest(name, &names, "columns"))
    })
}

fn row_values(line: &str, names: &[String]) -> Result<Values, OperatorError> {
    let row = Json::parse(line).map_err(OperatorError::engine)?;
    Ok(names.iter().map(|name| (name.clone(), row.get(name).cloned().unwrap_or(Json::Null))).collect())
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
    let again = |(place, name): (usize, &String)| {
        let message = format!("the column `{name}` is there twice");
        carry[..place].contains(name).then(|| ParamIssue::new(format!("carry.{place}"), message))
    };
    let repeated: Vec<ParamIssue> = carry.iter().enumerate().filter_map(again).collect();
    let names = carry.to_vec();
    declaration.issues(repeated).checks_columns(move |tables| {
        let missing = columns_checked(tables, port, |schema| {
            names.iter().map(|name| place(schema, name)).collect::<Result<Vec<_>, _>>()
        });
        missing.into_iter().collect()
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
    let is_of_rejected = |name: &str| {
        let chosen = name.strip_prefix(REJECTED).filter(|_| own.column_with_name(name).is_none());
        chosen.is_some_and(|chosen| schema.column_with_name(chosen).is_some())
    };
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for field in schema.fields().iter().filter(|field| !is_of_rejected(field.name())) {
        let other = pairs.column_by_name(&format!("{REJECTED}{}", field.name()));
        let other = other.filter(|_| is_rejected && own.column_with_name(field.name()).is_none());
        columns.push(Arc::clone(other.unwrap_or(&pairs[field.name().as_str()])));
        fields.push(Arc::clone(field));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
