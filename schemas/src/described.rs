//! Row structs: their Arrow columns and their descriptions, both from one declaration.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use serde::Serialize;

/// One column of a record kind, or one field of a nested column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// Column name.
    pub name: String,
    /// Type in words: `text`, `whole number`, `number`, `yes or no`, `list of text`, `list of objects`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether every row must have a value.
    pub required: bool,
    /// Description of the content.
    pub about: String,
    /// Fields, for a column of objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Column>,
}

/// A row struct, or the type of one of its fields.
pub(crate) trait Cell {
    /// Whether rows may lack the value.
    const OPTIONAL: bool = false;
    /// Doc comment of a struct.
    const ABOUT: &'static str = "";

    fn data_type() -> DataType;

    /// Returns the fields of a struct.
    fn columns() -> Vec<Column> {
        Vec::new()
    }
}

macro_rules! plain {
    ($($type:ty: $data_type:ident),+) => {
        $(impl Cell for $type {
            fn data_type() -> DataType {
                DataType::$data_type
            }
        })+
    };
}

plain!(String: Utf8, i32: Int32, i64: Int64, f32: Float32, f64: Float64, bool: Boolean);

impl<T: Cell> Cell for Option<T> {
    const OPTIONAL: bool = true;

    fn data_type() -> DataType {
        T::data_type()
    }
}

impl<T: Cell> Cell for Vec<T> {
    fn data_type() -> DataType {
        // Arrow's usual name for the items: with another one, the type would be another.
        DataType::List(Arc::new(Field::new("item", T::data_type(), false)))
    }

    fn columns() -> Vec<Column> {
        T::columns()
    }
}

pub(crate) fn field<T: Cell>(name: &str) -> FieldRef {
    Arc::new(Field::new(name, T::data_type(), T::OPTIONAL))
}

pub(crate) fn column<T: Cell>(name: &str, about: &str) -> Column {
    let (name, about, kind) = (name.to_owned(), about.trim().to_owned(), type_in_words(&T::data_type()));
    Column { name, kind, required: !T::OPTIONAL, about, fields: T::columns() }
}

/// Returns the columns of a row struct.
pub(crate) fn schema_of(data_type: DataType) -> SchemaRef {
    match data_type {
        DataType::Struct(fields) => Arc::new(Schema::new(fields)),
        _ => Arc::new(Schema::empty()),
    }
}

/// Returns the type of a column in words, as in [`Column::kind`].
pub fn type_in_words(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 => "text".to_owned(),
        DataType::Int32 | DataType::Int64 => "whole number".to_owned(),
        DataType::Float32 | DataType::Float64 => "number".to_owned(),
        DataType::Boolean => "yes or no".to_owned(),
        DataType::Struct(_) => "objects".to_owned(),
        DataType::List(item) => format!("list of {}", type_in_words(item.data_type())),
        other => other.to_string(),
    }
}

/// Declares a row struct unchanged, and makes its fields Arrow columns that have its doc comments.
macro_rules! described {
    (
        #[derive($($derive:path),+)]
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $($(#[doc = $doc:literal])+ pub $field:ident: $type:ty,)+
        }
    ) => {
        #[derive($($derive),+)]
        $(#[doc = $about])+
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl $crate::described::Cell for $name {
            const ABOUT: &'static str = concat!($($about),+);

            fn data_type() -> arrow::datatypes::DataType {
                let fields = vec![$($crate::described::field::<$type>(stringify!($field))),+];
                arrow::datatypes::DataType::Struct(fields.into())
            }

            fn columns() -> Vec<$crate::described::Column> {
                vec![$($crate::described::column::<$type>(stringify!($field), concat!($($doc),+))),+]
            }
        }
    };
}

pub(crate) use described;
