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

/// Returns the id of a node or reference before `@` or `.`.
pub(super) fn base(reference: &str) -> &str {
    // Coordinates may contain dots, and a port stands behind a dot without them.
    reference.split(['@', '.']).next().unwrap_or_default()
}

/// Returns a reference with its coordinates before its port (`step@round=3.steps`), if they stand behind it
/// (`step.steps@round=3`).
pub(super) fn in_order(reference: &str) -> Option<String> {
    let (written, coordinates) = reference.split_once('@')?;
    let (node, port) = written.split_once('.')?;
    Some(format!("{node}@{coordinates}.{port}"))
}

/// Returns the coordinates as text, as in the node's id.
pub(super) fn names(coordinates: &[Coordinate]) -> Vec<(String, String)> {
    coordinates.iter().map(|coordinate| (coordinate.key.clone(), coordinate.name.clone())).collect()
}

/// Whether the output `id` of a loop (`rl.policy@seed=1`) is called `name`: by its id, with the port last
/// (`rl@seed=1.policy`), or without coordinates.
pub(crate) fn same_output(id: &str, name: &str) -> bool {
    let Some((written, coordinates)) = id.split_once('@') else { return id == name };
    if id == name || written == name {
        return true;
    }
    matches!(written.split_once('.'), Some((of_loop, port)) if name == format!("{of_loop}@{coordinates}.{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_of_a_loop_has_three_names() {
        for name in ["rl.policy@seed=1", "rl@seed=1.policy", "rl.policy"] {
            assert!(same_output("rl.policy@seed=1", name), "{name}");
        }
        for name in ["rl.policy@seed=2", "rl@seed=1", "rl", "rl.optimizer"] {
            assert!(!same_output("rl.policy@seed=1", name), "{name}");
        }
        assert!(same_output("rl.policy", "rl.policy") && !same_output("rl.policy", "rl"));
    }
}
