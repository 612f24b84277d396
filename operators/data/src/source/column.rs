//! Columns that a parser fills value by value, and that can undo a partly read row.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, Float64Array, Int32Array, Int64Array, ListArray, StringArray,
    StructArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, FieldRef, Fields};
use arrow::error::ArrowError;
use searchmill_engine::spec::closest;
use searchmill_text::unambiguous::{ValueVisitor, field_twice};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::python_list::{ListText, list_of};

/// How strictly values must match the column type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Exactly as inferred: other shapes and unknown fields are errors. Text columns accept any value as JSON text.
    Exact,
    /// For hand-written data: a single value becomes a one-item list, JSON text becomes a list or object, and unknown
    /// fields inside objects are ignored.
    Lenient,
}

/// Limit of unknown fields of one object that a message lists.
const DROPPED_TOLD: usize = 8;

/// A column under construction.
pub struct Column {
    field: FieldRef,
    /// Path for messages: `evidence`, `evidence[]`, `evidence[].title`.
    path: String,
    fit: Fit,
    /// Whether a null counts as a missing field.
    pub(crate) skips_null: bool,
    /// Fields of its objects that have no column.
    dropped: BTreeSet<String>,
    validity: BooleanBufferBuilder,
    values: Values,
}

enum Values {
    Bool(BooleanBufferBuilder),
    Int(Vec<i64>),
    Float(Vec<f64>),
    Text { offsets: Vec<i32>, bytes: Vec<u8> },
    List { offsets: Vec<i32>, item: Box<Column> },
    Struct(Vec<Column>),
}

/// A scalar value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond `i64`.
    Large(u64),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A string.
    Text(&'a str),
}

impl Column {
    /// Creates an empty column.
    ///
    /// # Errors
    /// Fails if the type cannot be read from records.
    pub fn new(field: &FieldRef, fit: Fit) -> Result<Self, ArrowError> {
        Self::at(field.name().clone(), field, fit)
    }

    fn at(path: String, field: &FieldRef, fit: Fit) -> Result<Self, ArrowError> {
        let values = match field.data_type() {
            DataType::Boolean => Values::Bool(BooleanBufferBuilder::new(0)),
            DataType::Int64 | DataType::Int32 => Values::Int(Vec::new()),
            DataType::Float64 => Values::Float(Vec::new()),
            DataType::Utf8 => Values::Text { offsets: vec![0], bytes: Vec::new() },
            DataType::List(item) => {
                Values::List { offsets: vec![0], item: Box::new(Self::at(format!("{path}[]"), item, fit)?) }
            }
            DataType::Struct(fields) => {
                let columns = fields.iter().map(|field| Self::at(format!("{path}.{}", field.name()), field, fit));
                Values::Struct(columns.collect::<Result<_, _>>()?)
            }
            other => return Err(ArrowError::NotYetImplemented(format!("cannot read records into {other}"))),
        };
        let (field, validity) = (Arc::clone(field), BooleanBufferBuilder::new(0));
        Ok(Self { field, path, fit, skips_null: false, dropped: BTreeSet::new(), validity, values })
    }

    /// Returns the column's name.
    pub fn name(&self) -> &str {
        self.field.name()
    }

    /// Returns the number of rows so far.
    pub(crate) fn len(&self) -> usize {
        self.validity.len()
    }

    /// Whether it is a text column.
    pub fn is_text(&self) -> bool {
        matches!(self.values, Values::Text { .. })
    }

    /// Removes all rows from `len` on, including partly read ones.
    pub fn truncate(&mut self, len: usize) {
        self.validity.truncate(len);
        match &mut self.values {
            Values::Bool(values) => values.truncate(len),
            Values::Int(values) => values.truncate(len),
            Values::Float(values) => values.truncate(len),
            Values::Text { offsets, bytes } => {
                offsets.truncate(len + 1);
                bytes.truncate(offsets[len] as usize);
            }
            Values::List { offsets, item } => {
                offsets.truncate(len + 1);
                item.truncate(offsets[len] as usize);
            }
            Values::Struct(columns) => columns.iter_mut().for_each(|column| column.truncate(len)),
        }
    }

    /// Returns the text in the last row, if any.
    pub(crate) fn last_text(&self) -> Option<&str> {
        let Values::Text { offsets, bytes } = &self.values else { return None };
        let last = self.len().checked_sub(1).filter(|last| self.validity.get_bit(*last))?;
        std::str::from_utf8(&bytes[offsets[last] as usize..]).ok()
    }

    /// Appends a missing value: null, or an empty list if null is not allowed.
    ///
    /// # Errors
    /// Fails if a value is required.
    pub(crate) fn push_missing(&mut self) -> Result<(), String> {
        if self.field.is_nullable() {
            self.push_null();
            return Ok(());
        }
        // An empty list says that there is none; no other type has such a value.
        if !matches!(self.values, Values::List { .. }) {
            return Err(format!("`{}` is missing", self.path));
        }
        self.push_placeholder();
        self.validity.append(true);
        Ok(())
    }

    fn push_null(&mut self) {
        self.push_placeholder();
        self.validity.append(false);
    }

    fn push_placeholder(&mut self) {
        match &mut self.values {
            Values::Bool(values) => values.append(false),
            Values::Int(values) => values.push(0),
            Values::Float(values) => values.push(0.0),
            Values::Text { offsets, .. } | Values::List { offsets, .. } => offsets.push(offsets[offsets.len() - 1]),
            Values::Struct(columns) => columns.iter_mut().for_each(Self::push_null),
        }
    }

    /// Appends a scalar.
    ///
    /// # Errors
    /// Fails if the column has another type.
    pub(crate) fn push_scalar(&mut self, scalar: Scalar<'_>) -> Result<(), String> {
        let mut pushed = true;
        match (&mut self.values, scalar) {
            (Values::Text { offsets, bytes }, scalar) => {
                match scalar {
                    Scalar::Text(text) => bytes.extend_from_slice(text.as_bytes()),
                    Scalar::Bool(value) => bytes.extend_from_slice(value.to_string().as_bytes()),
                    Scalar::Int(value) => bytes.extend_from_slice(value.to_string().as_bytes()),
                    Scalar::Large(value) => bytes.extend_from_slice(value.to_string().as_bytes()),
                    // As JSON writes it: `1.0`, not `1`.
                    Scalar::Float(value) => bytes.extend_from_slice(Value::from(value).to_string().as_bytes()),
                }
                offsets.push(bytes.len() as i32);
            }
            (Values::Bool(values), Scalar::Bool(value)) => values.append(value),
            (Values::Int(values), Scalar::Int(value)) => values.push(value),
            (Values::Int(values), Scalar::Float(value)) if value.fract() == 0.0 && value.abs() < 9e15 => {
                values.push(value as i64);
            }
            // A number with fraction has 53 bits: others would be rounded.
            (Values::Float(values), Scalar::Int(value)) if (value as f64) as i128 == i128::from(value) => {
                values.push(value as f64);
            }
            (Values::Float(values), Scalar::Large(value)) if (value as f64) as i128 == i128::from(value) => {
                values.push(value as f64);
            }
            (Values::Float(values), Scalar::Float(value)) => values.push(value),
            _ => pushed = false,
        }
        // Whether the last number fits a 32-bit column.
        let in_range = match &self.values {
            Values::Int(values) if *self.field.data_type() == DataType::Int32 => {
                values.last().is_none_or(|value| i32::try_from(*value).is_ok())
            }
            _ => true,
        };
        // A value without validity is a partly read row: the caller truncates it.
        if pushed && in_range {
            self.validity.append(true);
            return Ok(());
        }
        match scalar {
            _ if pushed => Err(self.mismatch("a number out of range")),
            Scalar::Int(_) | Scalar::Large(_) if matches!(self.values, Values::Float(_)) => {
                Err(self.mismatch("a whole number that would be rounded"))
            }
            _ => self.push_loose(scalar),
        }
    }

    /// Accepts a single value for a list, and JSON text for every type but text.
    fn push_loose(&mut self, scalar: Scalar<'_>) -> Result<(), String> {
        if self.fit == Fit::Exact {
            return Err(self.mismatch(scalar.name()));
        }
        let nested = matches!(self.values, Values::List { .. } | Values::Struct(_));
        if let Scalar::Text(text) = scalar {
            // In a list of texts, `12` is a text; in a column of numbers, it is a number.
            if !nested || text.trim_start().starts_with(['[', '{']) {
                match super::strict::value(text.as_bytes()) {
                    Ok(value) if !value.is_string() => {
                        return Fill(self).deserialize(&value).map_err(|error| error.to_string());
                    }
                    Err(fault) if fault.kind != "bad_line" => {
                        return Err(format!("`{}`: {}", self.path, fault.message));
                    }
                    // No text can be an object. In a list of texts it may be one that begins with a bracket.
                    Err(fault) if self.holds_objects() => {
                        return Err(self.mismatch(&format!("a text that is {}", fault.message)));
                    }
                    _ => {}
                }
            }
            if let Some(items) = self.items_of(text)? {
                return self.push_texts(&items);
            }
        }
        match &mut self.values {
            Values::List { offsets, item } => {
                item.push_scalar(scalar)?;
                offsets.push(item.len() as i32);
                self.validity.append(true);
                Ok(())
            }
            _ => Err(self.mismatch(scalar.name())),
        }
    }

    /// Returns the items of a text that is a list of Python, if this is a column of lists of texts.
    fn items_of(&self, text: &str) -> Result<Option<Vec<String>>, String> {
        if !matches!(&self.values, Values::List { item, .. } if item.is_text()) {
            return Ok(None);
        }
        match list_of(text) {
            ListText::Items(items) => Ok(Some(items)),
            ListText::Plain => Ok(None),
            ListText::Broken => Err(format!(
                "`{}` looks like a list but is neither JSON nor a list of Python: write `[\"a\", \"b\"]`",
                self.path
            )),
        }
    }

    /// Appends a list of texts.
    fn push_texts(&mut self, items: &[String]) -> Result<(), String> {
        if let Values::List { offsets, item } = &mut self.values {
            for text in items {
                item.push_scalar(Scalar::Text(text))?;
            }
            offsets.push(item.len() as i32);
            self.validity.append(true);
        }
        Ok(())
    }

    /// Replaces the last list by the items of its only text, if this is a list of Python.
    fn unfold_last(&mut self) -> Result<(), String> {
        let Values::List { offsets, item } = &self.values else { return Ok(()) };
        let is_single = matches!(offsets.as_slice(), [.., before, last] if last - before == 1);
        if self.fit == Fit::Lenient
            && is_single
            && let Some(text) = item.last_text()
            && let Some(items) = self.items_of(text)?
        {
            self.truncate(self.len() - 1);
            self.push_texts(&items)?;
        }
        Ok(())
    }

    fn holds_objects(&self) -> bool {
        match &self.values {
            Values::List { item, .. } => item.holds_objects(),
            values => matches!(values, Values::Struct(_)),
        }
    }

    /// Whether the last row has a value other than null and empty text.
    fn is_filled(&self) -> bool {
        let is_valid = self.len().checked_sub(1).is_some_and(|last| self.validity.get_bit(last));
        is_valid && self.last_text() != Some("")
    }

    /// Collects fields of objects that have no column, as `evidence[].source`.
    pub(crate) fn collect_dropped(&self, found: &mut BTreeSet<String>) {
        found.extend(self.dropped.iter().map(|name| format!("{}.{name}", self.path)));
        match &self.values {
            Values::List { item, .. } => item.collect_dropped(found),
            Values::Struct(columns) => columns.iter().for_each(|column| column.collect_dropped(found)),
            _ => {}
        }
    }

    fn mismatch(&self, found: &str) -> String {
        let wanted = match &self.values {
            Values::Bool(_) => "true or false",
            Values::Int(_) => "a whole number",
            Values::Float(_) => "a number",
            Values::Text { .. } => "a text",
            Values::List { .. } => "a list",
            Values::Struct(_) => "an object",
        };
        format!("`{}` must be {wanted}, found {found}", self.path)
    }

    /// Returns the column as an array and clears it.
    ///
    /// # Errors
    /// Fails if a required value is null: a defect.
    pub fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let nulls = NullBuffer::new(self.validity.finish());
        let nulls = if nulls.null_count() > 0 { Some(nulls) } else { None };
        Ok(match &mut self.values {
            Values::Bool(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Int(values) if *self.field.data_type() == DataType::Int32 => {
                // Each was compared with the range when it came.
                let narrow: ScalarBuffer<i32> = std::mem::take(values).into_iter().map(|value| value as i32).collect();
                Arc::new(Int32Array::new(narrow, nulls))
            }
            Values::Int(values) => Arc::new(Int64Array::new(std::mem::take(values).into(), nulls)),
            Values::Float(values) => Arc::new(Float64Array::new(std::mem::take(values).into(), nulls)),
            Values::Text { offsets, bytes } => {
                let buffer = Buffer::from_vec(std::mem::take(bytes));
                Arc::new(StringArray::try_new(finish_offsets(offsets), buffer, nulls)?)
            }
            Values::List { offsets, item } => {
                let field = Arc::clone(&item.field);
                Arc::new(ListArray::try_new(field, finish_offsets(offsets), item.finish()?, nulls)?)
            }
            Values::Struct(columns) => {
                let fields: Fields = columns.iter().map(|column| Arc::clone(&column.field)).collect();
                let arrays = columns.iter_mut().map(Self::finish).collect::<Result<_, _>>()?;
                Arc::new(StructArray::try_new(fields, arrays, nulls)?)
            }
        })
    }
}

fn finish_offsets(offsets: &mut Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(std::mem::replace(offsets, vec![0]).into())
}

impl Scalar<'_> {
    fn name(self) -> &'static str {
        match self {
            Scalar::Bool(_) => "true or false",
            Scalar::Int(_) | Scalar::Large(_) => "a number",
            Scalar::Float(_) => "a number with a fraction",
            Scalar::Text(_) => "a text",
        }
    }
}

/// The methods of a visitor for scalars. `$take` gets the first field of the visitor, and the scalar.
macro_rules! visit_scalars {
    ($take:path) => {
        fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
            $take(self.0, Scalar::Bool(value)).map_err(E::custom)
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
            $take(self.0, Scalar::Int(value)).map_err(E::custom)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
            $take(self.0, i64::try_from(value).map_or(Scalar::Large(value), Scalar::Int)).map_err(E::custom)
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
            $take(self.0, Scalar::Float(value)).map_err(E::custom)
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
            $take(self.0, Scalar::Text(value)).map_err(E::custom)
        }
    };
}
pub(crate) use visit_scalars;

/// Writes the next value of a parser into a column.
pub(crate) struct Fill<'a>(pub(crate) &'a mut Column);

impl<'de> DeserializeSeed<'de> for Fill<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fill<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a value for `{}`", self.0.path)
    }

    visit_scalars!(Column::push_scalar);

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.0.skips_null { Ok(()) } else { self.0.push_missing().map_err(E::custom) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        let column = self.0;
        match &mut column.values {
            Values::List { offsets, item } => {
                while parts.next_element_seed(Fill(item))?.is_some() {}
                offsets.push(item.len() as i32);
                column.validity.append(true);
                column.unfold_last().map_err(A::Error::custom)
            }
            Values::Text { .. } => {
                let value = ValueVisitor.visit_seq(parts)?;
                column.push_scalar(Scalar::Text(&value.to_string())).map_err(A::Error::custom)
            }
            _ => Err(A::Error::custom(column.mismatch("a list"))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, parts: A) -> Result<(), A::Error> {
        let column = self.0;
        match &mut column.values {
            Values::Struct(columns) => {
                let (row, fit, mut unknown) = (column.validity.len(), column.fit, Vec::new());
                fill_fields(columns, row, parts, |name, parts| match fit {
                    Fit::Exact => Err(A::Error::custom(unknown_field(&name))),
                    Fit::Lenient => {
                        unknown.push(name);
                        parts.next_value::<IgnoredAny>().map(|_| ())
                    }
                })?;
                fill_gaps(columns, row).map_err(A::Error::custom)?;
                if column.fit == Fit::Lenient
                    && columns.iter().all(|part| part.field.is_nullable() && !part.is_filled())
                {
                    return Err(A::Error::custom(nothing_known(&column.path, columns, &unknown)));
                }
                column.dropped.extend(unknown.into_iter().take(DROPPED_TOLD));
                column.validity.append(true);
                Ok(())
            }
            Values::Text { .. } => {
                let value = ValueVisitor.visit_map(parts)?;
                column.push_scalar(Scalar::Text(&value.to_string())).map_err(A::Error::custom)
            }
            Values::List { offsets, item } if column.fit == Fit::Lenient => {
                Fill(item).visit_map(parts)?;
                offsets.push(item.len() as i32);
                column.validity.append(true);
                Ok(())
            }
            _ => Err(A::Error::custom(column.mismatch("an object"))),
        }
    }
}

/// Fills one row of columns. `unknown` takes the fields that have no column.
pub(crate) fn fill_fields<'de, A: MapAccess<'de>>(
    columns: &mut [Column],
    row: usize,
    mut parts: A,
    mut unknown: impl FnMut(String, &mut A) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    let mut expected = 0;
    while let Some(found) = parts.next_key_seed(FindColumn { columns, expected })? {
        match found {
            Ok(index) => {
                // The column has a value of this row already.
                if columns[index].len() > row {
                    return Err(A::Error::custom(field_twice(columns[index].name())));
                }
                parts.next_value_seed(Fill(&mut columns[index]))?;
                expected = index + 1;
            }
            Err(name) => unknown(name, &mut parts)?,
        }
    }
    Ok(())
}

/// Returns the message for an object whose fields are all unknown.
fn nothing_known(path: &str, columns: &[Column], unknown: &[String]) -> String {
    let known: Vec<&str> = columns.iter().map(Column::name).collect();
    let listed = format!("`{}`", known.join("`, `"));
    if unknown.is_empty() {
        return format!("`{path}` is empty: it needs one of {listed}");
    }
    let unknown = &unknown[..unknown.len().min(DROPPED_TOLD)];
    let has = format!("`{path}` has `{}`, but none of {listed}", unknown.join("`, `"));
    for name in unknown {
        if let Some(meant) = closest(name, known.iter().copied()).or_else(|| short_for(name, &known)) {
            return format!("{has}; did you mean `{meant}` for `{name}`?");
        }
    }
    has
}

/// Returns the name that a short form stands for: `doc_id` and `docId` for `document_id`.
fn short_for<'a>(short: &str, names: &[&'a str]) -> Option<&'a str> {
    fn letters(text: &str) -> Vec<char> {
        text.chars().filter(|ch| ch.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    }
    let short = letters(short);
    // A single letter is in nearly every name.
    if short.len() < 2 {
        return None;
    }
    for name in names {
        // The letters of the short form stand in the name, in this order.
        let mut rest = letters(name).into_iter();
        if short.iter().all(|ch| rest.any(|other| other == *ch)) {
            return Some(name);
        }
    }
    None
}

/// Fills columns without a value in this row. The error lists every missing required column.
pub(crate) fn fill_gaps(columns: &mut [Column], row: usize) -> Result<(), String> {
    let mut missing = Vec::new();
    for column in columns {
        if column.len() == row && column.push_missing().is_err() {
            missing.push(format!("`{}`", column.path));
        }
    }
    match missing.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("{one} is missing")),
        all => Err(format!("{} are missing", all.join(", "))),
    }
}

/// Returns the message for a field that was absent when the columns were inferred.
pub(crate) fn unknown_field(name: &str) -> String {
    format!("the field `{name}` is not among the inferred columns; raise `infer_rows` (0 looks at every row)")
}

/// Finds the column of a key. Keys mostly arrive in column order.
struct FindColumn<'a> {
    columns: &'a [Column],
    expected: usize,
}

/// The place of a key's column, or the key if it has none.
type Found = Result<usize, String>;

impl<'de> DeserializeSeed<'de> for FindColumn<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FindColumn<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Found, E> {
        if matches!(self.columns.get(self.expected), Some(column) if column.name() == name) {
            return Ok(Ok(self.expected));
        }
        Ok(self.columns.iter().position(|column| column.name() == name).ok_or_else(|| name.to_owned()))
    }
}
