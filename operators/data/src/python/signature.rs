//! The types that a function says of its columns, by its signature.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};

/// What a function that is marked with `searchmill.map` says of its columns (`signature.py`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signature {
    /// The JSON Schema of the rows that it returns.
    pub output: serde_json::Value,
    /// Types of the arguments, in words of JSON Schema; empty for any.
    takes: BTreeMap<String, String>,
    pub(super) wrong: Option<Wrong>,
}

/// What is wrong with a file, and where: it is no Python, or the signature says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wrong {
    pub(super) message: String,
    pub(super) line: u32,
}

impl Signature {
    /// Returns the type that the function wants for an argument, if a column of this type is certainly something else.
    pub fn contradicts(&self, argument: &str, column: &DataType) -> Option<&str> {
        let wanted = self.takes.get(argument)?.as_str();
        let passed = match column {
            DataType::Boolean => "boolean",
            DataType::Float16 | DataType::Float32 | DataType::Float64 => "number",
            DataType::Struct(_) | DataType::Map(..) => "object",
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => "array",
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string",
            kind if kind.is_integer() => "integer",
            // How others are passed (times as text) is not decided here.
            _ => return None,
        };
        let fits = wanted == passed || wanted.is_empty() || (wanted == "number" && passed == "integer");
        if fits { None } else { Some(wanted) }
    }
}
