//! `matrix:` — one node written, one for each combination of values meant.

use super::field::Problems;
use super::value::{Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};

/// Most nodes that one matrix may give.
const MAX_NODES: usize = 10_000;

/// One combination: each key with its value.
pub(super) type Coordinates = Vec<(String, Spanned)>;

/// All combinations of a matrix, the last key varying fastest; one empty combination when something is wrong.
pub(super) fn combinations(matrix: &Spanned, problems: &mut Problems) -> Vec<Coordinates> {
    let axes = axes(matrix, problems);
    let size = axes.iter().try_fold(1_usize, |size, (_, values)| size.checked_mul(values.len()));
    if size.is_none_or(|size| size > MAX_NODES) {
        let fault = Diagnostic::error("matrix-too-large", format!("this matrix gives more than {MAX_NODES} nodes"));
        problems.push(fault.at(matrix.span, ""));
        return vec![Vec::new()];
    }
    axes.iter().fold(vec![Vec::new()], |rows, (key, values)| cross(&rows, key, values))
}

fn cross(rows: &[Coordinates], key: &str, values: &[Spanned]) -> Vec<Coordinates> {
    let extend = |row: &Coordinates, value: &Spanned| {
        let mut row = row.clone();
        row.push((key.to_owned(), value.clone()));
        row
    };
    rows.iter().flat_map(|row| values.iter().map(move |value| extend(row, value))).collect()
}

fn axes(matrix: &Spanned, problems: &mut Problems) -> Vec<(String, Vec<Spanned>)> {
    let Value::Map(entries) = &matrix.value else {
        if matrix.value != Value::Broken {
            problems.push(bad(matrix.span, format!("`matrix` is a map of lists, not {}", matrix.kind())));
        }
        return Vec::new();
    };
    let axes = entries.iter().filter_map(|(key, value)| match &value.value {
        Value::List(items) if !items.is_empty() && is_word(&key.text) => {
            check_distinct(&key.text, items, problems);
            Some((key.text.clone(), items.clone()))
        }
        Value::Broken => None,
        Value::List(_) if !is_word(&key.text) => {
            problems.push(bad(key.span, format!("`{}` cannot be the key of a matrix", key.text)));
            None
        }
        _ => {
            problems.push(bad(value.span, format!("`matrix.{}` is a list of at least one value", key.text)));
            None
        }
    });
    axes.collect()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|ch| ch.is_alphanumeric() || matches!(ch, '_' | '-'))
}

fn bad(span: Span, message: String) -> Diagnostic {
    Diagnostic::error("bad-matrix", message)
        .at(span, "")
        .help("a matrix is written `{lr: [1e-4, 2e-4], rank: [8, 64]}`")
}

fn check_distinct(key: &str, values: &[Spanned], problems: &mut Problems) {
    let mut seen: Vec<(String, Span)> = Vec::new();
    for (position, value) in values.iter().enumerate() {
        let name = coordinate_name(value, position);
        if let Some((_, first)) = seen.iter().find(|(known, _)| *known == name) {
            let fault = Diagnostic::error("bad-matrix", format!("`matrix.{key}` has `{name}` twice"));
            problems.push(fault.at(value.span, "again here").at(*first, "first here"));
        } else {
            seen.push((name, value.span));
        }
    }
}

/// A value in the id of its node: its text with everything odd replaced by `_`; lists and maps by their position.
fn coordinate_name(value: &Spanned, position: usize) -> String {
    let Some(text) = value.scalar_text() else {
        return if value.value == Value::Null { "null".to_owned() } else { position.to_string() };
    };
    let keep = |ch: char| ch.is_alphanumeric() || matches!(ch, '_' | '-' | '.' | '+' | '/' | ':');
    text.chars().map(|ch| if keep(ch) { ch } else { '_' }).collect()
}

/// The coordinates as text, as they stand in the node's id.
pub(super) fn names(coordinates: &Coordinates, matrix: &Spanned) -> Vec<(String, String)> {
    let name = |(key, value): &(String, Spanned)| {
        let values = matrix.get(key).map_or(&[][..], Spanned::items);
        let position = values.iter().position(|other| other == value).unwrap_or_default();
        (key.clone(), coordinate_name(value, position))
    };
    coordinates.iter().map(name).collect()
}

/// `train@lr=1e-4,rank=64`.
pub(super) fn node_id(base: &str, names: &[(String, String)]) -> String {
    if names.is_empty() {
        return base.to_owned();
    }
    let coordinates: Vec<_> = names.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{base}@{}", coordinates.join(","))
}
