//! Infers the columns of a table from its rows.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use indexmap::IndexMap;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::column::{Scalar, visit_scalars};

/// An object with more keys counts as a map and is stored as JSON text.
const MOST_FIELDS: usize = 1000;

/// The common shape of all values seen so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Shape {
    /// Only nulls so far.
    #[default]
    Unknown,
    /// `true` and `false`.
    Bool,
    /// 64-bit integers.
    Int,
    /// Numbers.
    Float,
    /// Texts, or mixed values, which are stored as JSON text.
    Text,
    /// Lists of one item shape.
    List(Box<Shape>),
    /// Objects with these fields, in order of first appearance.
    Object(IndexMap<String, Shape>),
}

impl Shape {
    /// The initial shape of rows: an object without fields.
    pub fn row() -> Self {
        Self::Object(IndexMap::new())
    }

    fn scalar(&mut self, scalar: Scalar<'_>) {
        let seen = match scalar {
            Scalar::Bool(_) => Self::Bool,
            Scalar::Int(_) => Self::Int,
            Scalar::Float(_) => Self::Float,
            Scalar::Large(_) | Scalar::Text(_) => Self::Text,
        };
        *self = match (std::mem::take(self), seen) {
            (Self::Unknown, seen) => seen,
            (Self::Int, Self::Float) | (Self::Float, Self::Int) => Self::Float,
            // Texts hold every value.
            (before, seen) if before == seen => before,
            _ => Self::Text,
        };
    }

    /// Widens by a cell of a text table.
    pub fn cell(&mut self, text: &str) {
        if let Some(scalar) = super::cells::scalar(text) {
            self.scalar(scalar);
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "a visitor's method")]
    fn see(&mut self, scalar: Scalar<'_>) -> Result<(), &'static str> {
        self.scalar(scalar);
        Ok(())
    }

    /// Returns the Arrow type. Shapes without values and objects without fields become text.
    pub fn data_type(&self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::List(item) => DataType::List(Arc::new(Field::new("item", item.data_type(), true))),
            Self::Object(fields) if !fields.is_empty() => DataType::Struct(columns(fields).into()),
            _ => DataType::Utf8,
        }
    }

    /// Returns the columns of rows of this shape.
    pub fn columns(&self) -> Vec<FieldRef> {
        match self {
            Self::Object(fields) => columns(fields),
            _ => Vec::new(),
        }
    }
}

fn columns(fields: &IndexMap<String, Shape>) -> Vec<FieldRef> {
    fields.iter().map(|(name, shape)| Arc::new(Field::new(name, shape.data_type(), true))).collect()
}

/// Widens a shape by the next value of a parser.
pub struct Widen<'a>(pub &'a mut Shape);

impl<'de> DeserializeSeed<'de> for Widen<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Widen<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    visit_scalars!(Shape::see);

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        if *self.0 == Shape::Unknown {
            *self.0 = Shape::List(Box::default());
        }
        let mut other = Shape::Unknown;
        let item = if let Shape::List(item) = self.0 {
            item.as_mut()
        } else {
            // The items must still be read, although their shape does not matter any more.
            *self.0 = Shape::Text;
            &mut other
        };
        while parts.next_element_seed(Widen(item))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        if *self.0 == Shape::Unknown {
            *self.0 = Shape::row();
        }
        // Keys of a map are data: a table with a column for each would have thousands.
        if !matches!(self.0, Shape::Object(fields) if fields.len() <= MOST_FIELDS) {
            *self.0 = Shape::Text;
        }
        while let Some(name) = parts.next_key::<String>()? {
            match self.0 {
                Shape::Object(fields) => parts.next_value_seed(Widen(fields.entry(name).or_default()))?,
                _ => parts.next_value::<serde::de::IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(rows: &[&str]) -> Shape {
        let mut shape = Shape::row();
        for row in rows {
            let mut parser = serde_json::Deserializer::from_str(row);
            Widen(&mut shape).deserialize(&mut parser).unwrap();
        }
        shape
    }

    fn types(rows: &[&str]) -> Vec<String> {
        shape(rows).columns().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect()
    }

    #[test]
    fn columns_come_in_the_order_of_their_first_appearance() {
        assert_eq!(types(&[r#"{"b":1,"a":"x"}"#, r#"{"c":true,"b":2}"#]), ["b Int64", "a Utf8", "c Boolean"]);
    }

    #[test]
    fn shapes_widen_and_never_lose_a_value() {
        assert_eq!(types(&[r#"{"a":1}"#, r#"{"a":1.5}"#]), ["a Float64"]);
        assert_eq!(types(&[r#"{"a":1}"#, r#"{"a":"x"}"#]), ["a Utf8"]);
        assert_eq!(types(&[r#"{"a":[1]}"#, r#"{"a":{"b":1}}"#]), ["a Utf8"]);
        assert_eq!(types(&[r#"{"a":null}"#, r#"{"a":{}}"#]), ["a Utf8"]);
        assert_eq!(types(&[r#"{"a":18446744073709551615}"#]), ["a Utf8"]);
        assert_eq!(types(&[r#"{"a":[]}"#, r#"{"a":[{"b":1}]}"#]).len(), 1);
    }
}
