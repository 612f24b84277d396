//! Cells of a row as JSON, and JSON as columns.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::json::ReaderBuilder;
use searchmill_engine::operator::OperatorError;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::shared::columns::json_lines;

/// Column with a JSON object as text, of many record kinds.
pub(super) const METADATA: &str = "metadata";

/// Returns these columns of each row as a JSON object. `metadata` is an object if it holds one.
pub(super) fn objects(batch: &RecordBatch, columns: &[String]) -> Result<Vec<Map<String, Value>>, OperatorError> {
    let places = columns.iter().filter_map(|name| batch.schema().index_of(name).ok()).collect::<Vec<_>>();
    if places.is_empty() {
        return Ok(vec![Map::new(); batch.num_rows()]);
    }
    let text = json_lines(&batch.project(&places)?, "")?;
    let mut rows = Vec::with_capacity(batch.num_rows());
    for row in serde_json::Deserializer::from_slice(&text).into_iter::<Map<String, Value>>() {
        let mut row = row.map_err(|error| OperatorError::engine(format!("a row is no JSON: {error}")))?;
        // A template can then read its fields, for example `{{ metadata.year }}`.
        if let Some(Value::String(text)) = row.get(METADATA)
            && let Ok(object) = serde_json::from_str::<Map<String, Value>>(text)
        {
            row.insert(METADATA.to_owned(), Value::Object(object));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Returns these columns of each row as the text of a JSON object.
pub(super) fn texts(batch: &RecordBatch, columns: &[String]) -> Result<Vec<String>, OperatorError> {
    Ok(objects(batch, columns)?.into_iter().map(|row| Value::Object(row).to_string()).collect())
}

/// Returns the objects as columns. They must have been checked against the schema.
pub(super) fn columns(schema: &Arc<Schema>, objects: &[impl Serialize]) -> Result<RecordBatch, OperatorError> {
    let mut decoder = ReaderBuilder::new(Arc::clone(schema)).with_batch_size(objects.len().max(1)).build_decoder()?;
    decoder.serialize(objects)?;
    let batch = decoder.flush()?;
    Ok(batch.unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(schema))))
}
