//! Coordinates of a node in its matrix.

use super::value::{Spanned, Value};
use crate::diagnostic::Span;

/// The value of one key of a matrix in one of its nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordinate {
    /// The key.
    pub key: String,
    /// The value in the node's id.
    pub name: String,
    /// The value of `${matrix.KEY}`.
    pub value: Spanned,
    /// Whether the name was written: the key is a map of named values.
    pub is_named: bool,
    /// The loop whose round it is.
    pub repeats: Option<String>,
}

impl Coordinate {
    /// Replaces the values of a key after an error (an empty key: those of the whole matrix), so that nothing more is
    /// reported about them.
    pub(super) fn broken(key: &str, span: Span) -> Self {
        let value = Spanned::new(Value::Broken, span);
        Self { key: key.to_owned(), name: String::new(), value, is_named: false, repeats: None }
    }

    /// Whether the value could not be read.
    pub(super) fn is_broken(&self) -> bool {
        self.value.value == Value::Broken
    }
}

/// Returns an id like `train@lr=1e-4,rank=64`.
pub(super) fn node_id(base: &str, names: &[(String, String)]) -> String {
    if names.is_empty() {
        return base.to_owned();
    }
    let coordinates: Vec<_> = names.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{base}@{}", coordinates.join(","))
}

/// Returns the id of a node or reference before `@` or `.`.
pub(super) fn base(reference: &str) -> &str {
    reference.split(['@', '.']).next().unwrap_or_default()
}

/// Returns the coordinates as text, as in the node's id.
pub(super) fn names(coordinates: &[Coordinate]) -> Vec<(String, String)> {
    coordinates.iter().map(|coordinate| (coordinate.key.clone(), coordinate.name.clone())).collect()
}
