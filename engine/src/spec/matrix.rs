//! `matrix:`: expands one written node to one node per combination of values.

use std::collections::BTreeMap;

use super::field::{Problems, is_id};
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};

/// Limit of nodes per matrix.
const MAX_NODES: usize = 10_000;

/// One value of one key.
#[derive(Clone, Debug)]
pub(super) struct Coordinate {
    pub(super) key: String,
    /// The value in the node's id.
    pub(super) name: String,
    pub(super) value: Spanned,
}

/// Returns all combinations of a matrix, with the last key varying fastest; one empty combination after an error.
pub(super) fn combinations(matrix: &Spanned, problems: &mut Problems) -> Vec<Vec<Coordinate>> {
    let axes = axes(matrix, problems);
    let size = axes.iter().try_fold(1_usize, |size, axis| size.checked_mul(axis.len()));
    if size.is_none_or(|size| size > MAX_NODES) {
        let message = format!("this matrix expands to more than {MAX_NODES} nodes (limit)");
        problems.push(Diagnostic::error("matrix-too-large", message).at(matrix.span, ""));
        return vec![Vec::new()];
    }
    axes.iter().fold(vec![Vec::new()], |rows, axis| cross(&rows, axis))
}

fn cross(rows: &[Vec<Coordinate>], axis: &[Coordinate]) -> Vec<Vec<Coordinate>> {
    let extend = |row: &[Coordinate], coordinate: &Coordinate| [row, std::slice::from_ref(coordinate)].concat();
    rows.iter().flat_map(|row| axis.iter().map(move |coordinate| extend(row, coordinate))).collect()
}

fn axes(matrix: &Spanned, problems: &mut Problems) -> Vec<Vec<Coordinate>> {
    let Value::Map(entries) = &matrix.value else {
        if matrix.value != Value::Broken {
            problems.push(bad(matrix.span, format!("`matrix` must be a map of lists, not {}", matrix.kind())));
        }
        return Vec::new();
    };
    entries.iter().filter_map(|(key, value)| axis(key, value, problems)).collect()
}

fn axis(key: &Key, value: &Spanned, problems: &mut Problems) -> Option<Vec<Coordinate>> {
    match &value.value {
        Value::Broken => None,
        Value::List(_) if !is_id(&key.text) => {
            problems.push(bad(key.span, format!("`{}` is not a valid matrix key", key.text)));
            None
        }
        Value::List(items) if !items.is_empty() => Some(distinct(&key.text, items, problems)),
        _ => {
            problems.push(bad(value.span, format!("`matrix.{}` must be a list of at least one value", key.text)));
            None
        }
    }
}

fn bad(span: Span, message: String) -> Diagnostic {
    Diagnostic::error("bad-matrix", message)
        .at(span, "")
        .help("a matrix is written `{lr: [1e-4, 2e-4], rank: [8, 64]}`")
}

/// Returns the values of a key with their names, which must differ.
fn distinct(key: &str, values: &[Spanned], problems: &mut Problems) -> Vec<Coordinate> {
    let mut seen: BTreeMap<String, Span> = BTreeMap::new();
    let mut axis = Vec::new();
    for (position, value) in values.iter().enumerate() {
        let name = coordinate_name(value, position);
        if let Some(first) = seen.get(&name) {
            let fault = Diagnostic::error("bad-matrix", format!("`matrix.{key}` has `{name}` twice"));
            problems.push(fault.at(value.span, "again here").at(*first, "first here"));
        } else {
            seen.insert(name.clone(), value.span);
            axis.push(Coordinate { key: key.to_owned(), name, value: value.clone() });
        }
    }
    axis
}

/// Returns a value's name in the node's id: its text with special characters replaced by `_`; for lists and maps, the
/// position.
fn coordinate_name(value: &Spanned, position: usize) -> String {
    let Some(text) = value.scalar_text() else {
        return if value.value == Value::Null { "null".to_owned() } else { position.to_string() };
    };
    let keep = |ch: char| ch.is_alphanumeric() || matches!(ch, '_' | '-' | '.' | '+' | '/' | ':');
    text.chars().map(|ch| if keep(ch) { ch } else { '_' }).collect()
}

/// Returns the coordinates as text, as in the node's id.
pub(super) fn names(coordinates: &[Coordinate]) -> Vec<(String, String)> {
    coordinates.iter().map(|coordinate| (coordinate.key.clone(), coordinate.name.clone())).collect()
}

/// Returns an id like `train@lr=1e-4,rank=64`.
pub(super) fn node_id(base: &str, names: &[(String, String)]) -> String {
    if names.is_empty() {
        return base.to_owned();
    }
    let coordinates: Vec<_> = names.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{base}@{}", coordinates.join(","))
}
