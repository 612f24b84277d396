//! Values of a table as JSON for the page: long texts are cut, and say so.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use serde_json::{Number, Value, json};

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
        for (row, value) in rows.iter_mut().zip(values(field.name(), column)?) {
            let is_nested = value.is_array() || value.is_object();
            row.push(cut(if is_nested { Value::String(value.to_string()) } else { value }, texts));
        }
    }
    Ok(rows)
}

/// Returns each row as an object. Texts in it are cut after `texts` characters.
pub(super) fn objects(batch: &RecordBatch, texts: usize) -> Result<Vec<Value>, String> {
    let mut rows = vec![serde_json::Map::new(); batch.num_rows()];
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        for (row, value) in rows.iter_mut().zip(values(field.name(), column)?) {
            row.insert(field.name().clone(), cut(value, texts));
        }
    }
    Ok(rows.into_iter().map(Value::Object).collect())
}

/// Returns the values of a column. What JSON has no number for is its text: NaN, and infinities.
fn values(name: &str, column: &ArrayRef) -> Result<Vec<Value>, String> {
    // Apart, as the JSON writer of arrow would write null for NaN and for infinities.
    if column.data_type().is_floating() {
        let numbers = cast(column, &DataType::Float64).map_err(|error| error.to_string())?;
        let mut values = Vec::with_capacity(column.len());
        for number in numbers.as_primitive::<Float64Type>() {
            values.push(match number {
                Some(number) if !number.is_finite() => Value::from(number.to_string()),
                number => number.into(),
            });
        }
        return Ok(values);
    }
    let alone = RecordBatch::try_from_iter_with_nullable([(name, ArrayRef::clone(column), true)]);
    let lines = display::json_lines(&alone.map_err(|error| error.to_string())?)?;
    let mut values = Vec::with_capacity(lines.len());
    for line in lines {
        let mut value: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        // The writer leaves nulls out: a missing field is one.
        values.push(value.get_mut(name).map(Value::take).unwrap_or_default());
    }
    Ok(values)
}

/// Cuts texts and long lists of numbers inside a value: `{"cut": beginning, "length": of the whole}`. Whole numbers that
/// a page would round are texts.
pub(super) fn cut(value: Value, texts: usize) -> Value {
    match value {
        Value::String(text) => match text.char_indices().nth(texts) {
            None => Value::String(text),
            Some((end, _)) => json!({"cut": text[..end], "length": text.chars().count()}),
        },
        Value::Number(number) if is_large(&number) => Value::String(number.to_string()),
        Value::Array(items) if items.len() > NUMBERS && items.iter().all(Value::is_number) => {
            json!({"cut": items[..NUMBERS], "length": items.len()})
        }
        Value::Array(items) => items.into_iter().map(|item| cut(item, texts)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, cut(value, texts))).collect(),
        other => other,
    }
}

fn is_large(number: &Number) -> bool {
    number.as_i64().is_some_and(|number| number.abs() > EXACT)
        || number.as_u64().is_some_and(|number| number > EXACT as u64)
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
        let big = json!("9223372036854775807");
        let list = json!({"cut": "[1", "length": 8});
        assert_eq!(rows[0], [json!({"cut": "äö", "length": 3}), json!({"cut": "Na", "length": 3}), big, list]);
        assert_eq!(rows[1], [Value::Null, json!(0.1), json!(3), Value::Null]);
        let row = objects(&batch, 100).unwrap().swap_remove(0);
        assert_eq!((&row["text"], &row["__proto__"]), (&json!("äöü"), &json!([1, null])));
        assert_eq!((&row["float"], &row["whole"]), (&json!("NaN"), &json!("9223372036854775807")));
    }
}
