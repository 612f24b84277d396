//! Columns as other types and as text, without a value that changes unnoticed.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt64Array};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};

use crate::record::SchemaError;

/// Casts a column to a type.
///
/// # Errors
/// Fails if a value would become another one or null.
pub fn cast_exactly(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, SchemaError> {
    if column.data_type() == wanted {
        return Ok(Arc::clone(column));
    }
    // By default, a value that does not fit becomes null.
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let cast = cast_with_options(column, wanted, &strict).map_err(|error| SchemaError(error.to_string()))?;
    // Arrow rounds 0.5 to 0 and truncates times without an error: only the way back shows it.
    if changes_values(column.data_type(), wanted) {
        let back = cast_with_options(&cast, column.data_type(), &strict);
        if back.map_err(|error| SchemaError(error.to_string()))?.as_ref() != column.as_ref() {
            return Err(SchemaError(format!("not every {} is a {wanted}", column.data_type())));
        }
    }
    Ok(cast)
}

/// Whether a cast that succeeds may still round or truncate: between different types that are not text.
fn changes_values(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Dictionary(_, from), to) => changes_values(from, to),
        (from, DataType::Dictionary(_, to)) => changes_values(from, to),
        (DataType::Struct(from), DataType::Struct(to)) => {
            from.iter().zip(to).any(|(from, to)| changes_values(from.data_type(), to.data_type()))
        }
        (from, to) => match (item(from), item(to)) {
            (Some(from), Some(to)) => changes_values(from.data_type(), to.data_type()),
            _ => from != to && !is_texts(from) && !is_texts(to),
        },
    }
}

fn item(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => Some(item),
        _ => None,
    }
}

fn is_texts(data_type: &DataType) -> bool {
    is_bytes(data_type) || matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, FixedSizeBinary, LargeBinary};
    matches!(data_type, Binary | LargeBinary | BinaryView | FixedSizeBinary(_))
}

/// Whether values of the type hold bytes that no text type describes.
pub fn has_bytes(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => has_bytes(values),
        DataType::Struct(fields) => fields.iter().any(|field| has_bytes(field.data_type())),
        other => is_bytes(other) || item(other).is_some_and(|item| has_bytes(item.data_type())),
    }
}

/// Returns the first column with a map that is no JSON object, and why: its keys are no text, or one is there twice.
pub fn unfit_for_json(batch: &RecordBatch) -> Option<(String, String)> {
    let schema = batch.schema();
    let mut columns = schema.fields().iter().zip(batch.columns());
    columns.find_map(|(field, column)| Some((field.name().clone(), unfit_map(column)?)))
}

fn unfit_map(column: &ArrayRef) -> Option<String> {
    if let Some(map) = column.as_map_opt() {
        let keys = map.keys();
        if !is_texts(keys.data_type()) || is_bytes(keys.data_type()) {
            return Some(format!("a map whose keys are {}", keys.data_type()));
        }
        // One type of text for the loop below; keys may be of any.
        let keys = arrow::compute::cast(keys, &DataType::LargeUtf8).ok()?;
        let keys = keys.as_string::<i64>();
        for bounds in map.value_offsets().windows(2) {
            let mut seen = BTreeSet::new();
            for place in bounds[0]..bounds[1] {
                let key = keys.value(place as usize);
                if !seen.insert(key) {
                    return Some(format!("a map that has the key `{key}` twice"));
                }
            }
        }
        return unfit_map(map.values());
    }
    // A map may lie inside lists and objects.
    if let Some(list) = column.as_list_opt::<i32>() {
        return unfit_map(list.values());
    }
    if let Some(list) = column.as_list_opt::<i64>() {
        return unfit_map(list.values());
    }
    column.as_struct_opt().and_then(|object| object.columns().iter().find_map(unfit_map))
}

/// Returns the type with `leaf` in place of each type that has no parts.
fn mapped(data_type: &DataType, leaf: &impl Fn(&DataType) -> DataType) -> DataType {
    match data_type {
        DataType::List(item) => DataType::List(mapped_field(item, leaf)),
        DataType::LargeList(item) => DataType::LargeList(mapped_field(item, leaf)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(mapped_field(item, leaf), *length),
        DataType::Map(entries, sorted) => DataType::Map(mapped_field(entries, leaf), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|field| mapped_field(field, leaf)).collect()),
        other => leaf(other),
    }
}

fn mapped_field(field: &FieldRef, leaf: &impl Fn(&DataType) -> DataType) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(mapped(field.data_type(), leaf)))
}

/// Returns a column of bytes as text; other columns stay.
///
/// # Errors
/// Fails if bytes are not UTF-8.
pub fn bytes_as_text(column: &ArrayRef) -> Result<ArrayRef, SchemaError> {
    if !has_bytes(column.data_type()) {
        return Ok(Arc::clone(column));
    }
    // Arrow casts bytes of a fixed length, and those in a dictionary, to plain bytes alone.
    let plain = mapped(column.data_type(), &|leaf| match leaf {
        DataType::FixedSizeBinary(_) | DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) if is_bytes(values) => DataType::Binary,
        other => other.clone(),
    });
    let text = mapped(&plain, &|leaf| match leaf {
        DataType::Binary => DataType::Utf8,
        DataType::LargeBinary => DataType::LargeUtf8,
        other => other.clone(),
    });
    if let Ok(texts) = cast_exactly(column, &plain).and_then(|plain| cast_exactly(&plain, &text)) {
        return Ok(texts);
    }
    // Of a slice, Arrow checks the bytes of all rows that share its buffer.
    cast_exactly(&cast_exactly(&copied(column, 0, column.len())?, &plain)?, &text)
}

/// Returns some rows in buffers of their own.
fn copied(column: &ArrayRef, first: usize, rows: usize) -> Result<ArrayRef, SchemaError> {
    let places: UInt64Array = (first as u64..(first + rows) as u64).collect();
    take(column.as_ref(), &places, None).map_err(|error| SchemaError(error.to_string()))
}

/// Most digits that a number with fraction keeps.
const EXACT_DIGITS: u8 = 15;

/// Returns a column with long decimal numbers as text; others stay.
///
/// # Errors
/// Only for types that Arrow cannot cast.
pub fn decimals_as_text(column: &ArrayRef) -> Result<ArrayRef, SchemaError> {
    let text = mapped(column.data_type(), &|leaf| match leaf {
        // A double keeps any decimal number of 15 digits (`f64::DIGITS`).
        DataType::Decimal32(digits, _)
        | DataType::Decimal64(digits, _)
        | DataType::Decimal128(digits, _)
        | DataType::Decimal256(digits, _)
            if *digits > EXACT_DIGITS =>
        {
            DataType::Utf8
        }
        other => other.clone(),
    });
    cast_exactly(column, &text)
}

/// Returns rows whose bytes are text.
///
/// # Errors
/// Names the first column that holds bytes that are not UTF-8, and the row in the batch, from 0.
pub fn with_bytes_as_text(batch: &RecordBatch) -> Result<RecordBatch, (String, usize)> {
    if !batch.schema().fields().iter().any(|field| has_bytes(field.data_type())) {
        return Ok(batch.clone());
    }
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let Ok(text) = bytes_as_text(column) else {
            let mut rows = 0..column.len();
            let row = rows.find(|row| copied(column, *row, 1).and_then(|one| bytes_as_text(&one)).is_err());
            return Err((field.name().clone(), row.unwrap_or_default()));
        };
        fields.push(Arc::new(Field::clone(field).with_data_type(text.data_type().clone())));
        columns.push(text);
    }
    let schema = arrow::datatypes::Schema::new(fields);
    RecordBatch::try_new(Arc::new(schema), columns).map_err(|error| (error.to_string(), 0))
}

/// Returns the path of the first name that two columns share, or two fields of an object: `metadata.source`.
pub fn name_twice(fields: &Fields) -> Option<String> {
    let mut names = BTreeSet::new();
    if let Some(twice) = fields.iter().find(|field| !names.insert(field.name())) {
        return Some(twice.name().clone());
    }
    fields.iter().find_map(|field| Some(format!("{}{}", field.name(), twice_inside(field.data_type())?)))
}

fn twice_inside(data_type: &DataType) -> Option<String> {
    match data_type {
        DataType::Struct(fields) => Some(format!(".{}", name_twice(fields)?)),
        DataType::Dictionary(_, values) => twice_inside(values),
        other => Some(format!("[]{}", twice_inside(item(other)?.data_type())?)),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BinaryArray, BinaryViewArray, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array,
        LargeBinaryArray, ListArray, StringArray, StructArray,
    };
    use arrow::datatypes::{Int32Type, Schema};

    use super::*;

    fn cast(column: impl Array + 'static, wanted: &DataType) -> Result<ArrayRef, String> {
        cast_exactly(&(Arc::new(column) as ArrayRef), wanted).map_err(|error| error.0)
    }

    #[test]
    fn a_cast_keeps_every_value_or_fails() {
        let whole = cast(Float64Array::from(vec![Some(1.0), None, Some(-3.0)]), &DataType::Int64).unwrap();
        assert_eq!(whole.as_ref(), &Int64Array::from(vec![Some(1), None, Some(-3)]));
        assert!(cast(Float64Array::from(vec![1.5]), &DataType::Int64).unwrap_err().contains("not every Float64"));
        assert!(cast(Int64Array::from(vec![3_000_000_000]), &DataType::Int32).is_err(), "not null");
        assert!(cast(Int64Array::from(vec![(1 << 53) + 1]), &DataType::Float64).is_err(), "not rounded");
        assert!(cast(Int64Array::from(vec![1 << 53]), &DataType::Float64).is_ok());
        assert!(cast(StringArray::from(vec!["x"]), &DataType::Int64).is_err(), "not null");
        assert!(cast(Int64Array::from(vec![2]), &DataType::Boolean).is_err());
        assert!(cast(BinaryArray::from_iter_values([b"\xff"]), &DataType::Utf8).is_err(), "not null");
        let list = |value| ListArray::from_iter_primitive::<arrow::datatypes::Float64Type, _, _>([Some([Some(value)])]);
        let ints = DataType::new_list(DataType::Int64, true);
        assert!(cast(list(2.0), &ints).is_ok() && cast(list(2.5), &ints).is_err());
    }

    fn text(column: impl Array + 'static) -> Result<Vec<String>, SchemaError> {
        let found = bytes_as_text(&(Arc::new(column) as ArrayRef))?;
        assert!(!has_bytes(found.data_type()), "{}", found.data_type());
        let shown = arrow::util::display::FormatOptions::new();
        let shown = arrow::util::display::ArrayFormatter::try_new(found.as_ref(), &shown).unwrap();
        Ok((0..found.len()).map(|row| shown.value(row).to_string()).collect())
    }

    #[test]
    fn bytes_of_every_type_become_text() {
        let words: [&[u8]; 3] = [b"ab", "é".as_bytes(), b"ab"];
        assert_eq!(text(BinaryArray::from_iter_values(words)).unwrap(), ["ab", "é", "ab"]);
        assert_eq!(text(LargeBinaryArray::from_iter_values(words)).unwrap(), ["ab", "é", "ab"]);
        assert_eq!(text(BinaryViewArray::from_iter_values(words)).unwrap(), ["ab", "é", "ab"]);
        assert_eq!(text(FixedSizeBinaryArray::try_from_iter(words.iter()).unwrap()).unwrap(), ["ab", "é", "ab"]);
        let values: ArrayRef = Arc::new(BinaryArray::from_iter_values([b"x", b"y"]));
        let dictionary = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![Some(1), None, Some(0)]), values);
        assert_eq!(text(dictionary).unwrap(), ["y", "", "x"]);
        let inner: ArrayRef = Arc::new(BinaryArray::from_iter_values(words));
        let nested = StructArray::from(vec![(Arc::new(Field::new("b", DataType::Binary, true)), inner)]);
        assert_eq!(text(nested).unwrap()[1], "{b: é}");
        assert!(text(BinaryArray::from_iter_values([b"a".as_slice(), b"\xff\xfe"])).is_err());
    }

    #[test]
    fn the_first_row_with_other_bytes_is_named() {
        let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values([b"a", b"b", b"\xe9"]));
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let batch = RecordBatch::try_from_iter([("id", ids), ("text", bytes)]).unwrap();
        assert_eq!(with_bytes_as_text(&batch).unwrap_err(), ("text".to_owned(), 2));
        let texts = with_bytes_as_text(&batch.slice(0, 2)).unwrap();
        assert_eq!(texts.column(1).as_ref(), &StringArray::from(vec!["a", "b"]));
    }

    #[test]
    fn names_that_stand_twice_are_found_at_any_depth() {
        let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
        let twice = |fields: Vec<Field>| name_twice(Schema::new(fields).fields());
        assert_eq!(twice(vec![field("a", DataType::Utf8), field("b", DataType::Utf8)]), None);
        assert_eq!(twice(vec![field("a", DataType::Utf8), field("a", DataType::Int64)]).unwrap(), "a");
        let inner = DataType::Struct(vec![field("x", DataType::Utf8), field("x", DataType::Utf8)].into());
        assert_eq!(twice(vec![field("a", DataType::new_list(inner, true))]).unwrap(), "a[].x");
    }
}
