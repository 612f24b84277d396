//! Values of a table as JSON for the page: long texts are cut, and say so.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use serde_json::{Value, json};

use crate::display;

/// Largest whole number that a page's numbers hold exactly.
const EXACT: i64 = 1 << 53;
/// Items of a list of numbers that are sent (at most).
const NUMBERS: usize = 2000;

/// Returns the rows of a batch, one list of cells each. Texts and nested values (as JSON text) are cut after `texts`
/// characters.
pub(super) fn rows(batch: &RecordBatch, texts: usize) -> Result<Vec<Vec<Value>>, String> {
    let mut rows = vec![Vec::with_capacity(batch.num_columns()); batch.num_rows()];
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let cells = match scalars(column)? {
            Some(cells) => cells,
            None => nested(field.name(), column)?,
        };
        for (row, cell) in rows.iter_mut().zip(cells) {
            row.push(cut(cell, texts));
        }
    }
    Ok(rows)
}

/// Returns one row as an object. Texts in it are cut after `texts` characters.
pub(super) fn object(batch: &RecordBatch, texts: usize) -> Result<Value, String> {
    let line = display::json_lines(batch)?.into_iter().next().ok_or("there is no such row")?;
    let value: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
    Ok(cut(value, texts))
}

/// Returns the cells of a column of texts, numbers, or yes and no; `None` for other types.
fn scalars(column: &ArrayRef) -> Result<Option<Vec<Value>>, String> {
    let wrong = |error: arrow::error::ArrowError| error.to_string();
    let kind = column.data_type();
    let cells = match kind {
        DataType::Boolean => column.as_boolean().iter().map(Value::from).collect(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let texts = cast(column, &DataType::LargeUtf8).map_err(wrong)?;
            texts.as_string::<i64>().iter().map(Value::from).collect()
        }
        _ if kind.is_floating() => {
            let numbers = cast(column, &DataType::Float64).map_err(wrong)?;
            numbers.as_primitive::<arrow::datatypes::Float64Type>().iter().map(float).collect()
        }
        _ if kind.is_integer() && *kind != DataType::UInt64 => {
            let numbers = cast(column, &DataType::Int64).map_err(wrong)?;
            numbers.as_primitive::<arrow::datatypes::Int64Type>().iter().map(whole).collect()
        }
        _ => return Ok(None),
    };
    Ok(Some(cells))
}

fn float(value: Option<f64>) -> Value {
    match value {
        Some(value) if !value.is_finite() => Value::from(value.to_string()),
        value => value.into(),
    }
}

fn whole(value: Option<i64>) -> Value {
    match value {
        Some(value) if value.abs() > EXACT => Value::from(value.to_string()),
        value => value.into(),
    }
}

/// Returns the cells of a column of lists, objects and other values as JSON text.
fn nested(name: &str, column: &ArrayRef) -> Result<Vec<Value>, String> {
    let alone = RecordBatch::try_from_iter_with_nullable([(name, ArrayRef::clone(column), true)]);
    let lines = display::json_lines(&alone.map_err(|error| error.to_string())?)?;
    let mut cells = Vec::with_capacity(lines.len());
    for (row, line) in lines.iter().enumerate() {
        let mut value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        cells.push(match value[name].take() {
            Value::Null => Value::Null,
            _ if column.is_null(row) => Value::Null,
            Value::String(text) => Value::String(text),
            other => Value::String(other.to_string()),
        });
    }
    Ok(cells)
}

/// Cuts texts and long lists of numbers inside a value: `{"cut": beginning, "length": of the whole}`.
pub(super) fn cut(value: Value, texts: usize) -> Value {
    match value {
        Value::String(text) => match text.char_indices().nth(texts) {
            None => Value::String(text),
            Some((end, _)) => json!({"cut": text[..end], "length": text.chars().count()}),
        },
        Value::Array(items) if items.len() > NUMBERS && items.iter().all(Value::is_number) => {
            json!({"cut": items[..NUMBERS], "length": items.len()})
        }
        Value::Array(items) => items.into_iter().map(|item| cut(item, texts)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, cut(value, texts))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, ListArray, StringArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn cells_are_exact_or_say_that_they_are_cut() {
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None]);
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("text", Arc::new(StringArray::from(vec![Some("äöü"), None])) as ArrayRef, true),
            ("float", Arc::new(Float64Array::from(vec![f64::NAN, 0.1])) as ArrayRef, true),
            ("whole", Arc::new(Int64Array::from(vec![i64::MAX, 3])) as ArrayRef, true),
            ("__proto__", Arc::new(list) as ArrayRef, true),
        ])
        .unwrap();
        let rows = rows(&batch, 2).unwrap();
        let big = json!({"cut": "92", "length": 19});
        let list = json!({"cut": "[1", "length": 8});
        assert_eq!(rows[0], [json!({"cut": "äö", "length": 3}), json!({"cut": "Na", "length": 3}), big, list]);
        assert_eq!(rows[1], [Value::Null, json!(0.1), json!(3), Value::Null]);
        let row = object(&batch.slice(0, 1), 100).unwrap();
        assert_eq!((&row["text"], &row["__proto__"]), (&json!("äöü"), &json!([1, null])));
    }
}
