//! `matrix:`: expands one written node to one node per combination of values.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::{Budget, weight};
use super::coordinate::Coordinate;
use super::field::{Problems, is_id, refuse};
use super::suggest;
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};

/// Limit of nodes per matrix.
const MAX_NODES: usize = 10_000;

/// Replaces axes that name another node (`{size: chunks}`), and matrices that do (`chunks`), by those of that node.
pub(super) fn take_over(mut written: Vec<(&String, &mut Spanned)>, problems: &mut Problems) {
    // Most matrices name no other node: these are not copied.
    if !written.iter().any(|(_, matrix)| names_a_node(matrix) || matrix.children().any(names_a_node)) {
        return;
    }
    let raw: BTreeMap<String, Spanned> =
        written.iter().map(|(id, matrix)| ((*id).clone(), (**matrix).clone())).collect();
    let mut taken = Taken { raw: &raw, budget: Budget::default(), problems };
    for (_, matrix) in &mut written {
        taken.replace(matrix);
    }
}

fn names_a_node(value: &Spanned) -> bool {
    matches!(value.value, Value::String(_))
}

struct Taken<'a> {
    raw: &'a BTreeMap<String, Spanned>,
    budget: Budget,
    problems: &'a mut Problems,
}

impl Taken<'_> {
    fn replace(&mut self, matrix: &mut Spanned) {
        if let Value::String(node) = &matrix.value {
            *matrix = self.matrix_of(node, matrix.span).unwrap_or(Spanned::new(Value::Broken, matrix.span));
        }
        let Value::Map(entries) = &mut matrix.value else { return };
        for (key, value) in entries {
            if let Value::String(node) = &value.value {
                let found = self.axis_of(node, key, value.span);
                *value = found.unwrap_or(Spanned::new(Value::Broken, value.span));
            }
        }
    }

    /// Returns the matrix of a node, as written.
    fn matrix_of(&mut self, node: &str, span: Span) -> Option<Spanned> {
        let mut seen = BTreeSet::from([node]);
        let mut found = self.raw.get(node);
        while let Some(Value::String(next)) = found.map(|found| &found.value) {
            // A matrix may take that of a node which takes another one's.
            if !seen.insert(next) {
                return refuse(self.problems, bad(span, format!("the matrix of `{node}` names itself")));
            }
            found = self.raw.get(next);
        }
        if found.is_none() {
            let names: Vec<&str> = self.raw.keys().map(String::as_str).collect();
            let fault = bad(span, format!("there is no node `{node}` with a matrix in this file"));
            let help = suggest::closest(node, names).map(|name| format!("did you mean `{name}`?"));
            self.problems.push(fault.help_some(help));
        }
        self.copied(found.cloned()?, span)
    }

    /// Returns the axis of that name of a node.
    fn axis_of(&mut self, node: &str, key: &Key, span: Span) -> Option<Spanned> {
        let mut seen = BTreeSet::from([node.to_owned()]);
        let mut node = node.to_owned();
        loop {
            let matrix = self.matrix_of(&node, span)?;
            let Some(axis) = matrix.get(&key.text) else {
                let keys: Vec<&str> = matrix.entries().iter().map(|(key, _)| key.text.as_str()).collect();
                let fault = bad(span, format!("the matrix of `{node}` has no key `{}`", key.text));
                return refuse(self.problems, Diagnostic { help: suggest::listing(&keys), ..fault });
            };
            let Value::String(next) = &axis.value else { return self.copied(axis.clone(), span) };
            if !seen.insert(next.clone()) {
                let message = format!("the key `{}` of the matrix of `{node}` names itself", key.text);
                return refuse(self.problems, bad(span, message));
            }
            node.clone_from(next);
        }
    }

    fn copied(&mut self, value: Spanned, span: Span) -> Option<Spanned> {
        if self.budget.charge(weight(&value)) {
            return Some(value);
        }
        refuse(self.problems, Diagnostic::error("too-many-values", "matrices copy too many values").at(span, ""))
    }
}

/// Returns all combinations of a matrix, with the last key varying fastest; a single one after an error.
pub(super) fn combinations(matrix: &Spanned, problems: &mut Problems) -> Vec<Vec<Coordinate>> {
    let axes = axes(matrix, problems);
    // Saturating, in 128 bits: the product of a few long lists must not wrap around to an allowed size.
    let size = axes.iter().fold(1_u128, |size, axis| size.saturating_mul(axis.len() as u128));
    if size > MAX_NODES as u128 {
        let message = format!("this matrix expands to {size} nodes (limit: {MAX_NODES})");
        let lengths: Vec<_> = axes.iter().map(|axis| format!("`{}` has {}", axis[0].key, axis.len())).collect();
        let fault = Diagnostic::error("matrix-too-large", message).at(matrix.span, "");
        problems.push(fault.help(format!("remove values: {}", lengths.join(", "))));
        // Its keys are known to what refers to them.
        return vec![axes.iter().map(|axis| Coordinate::broken(&axis[0].key, matrix.span)).collect()];
    }
    let mut rows: Vec<Vec<Coordinate>> = vec![Vec::new()];
    for axis in &axes {
        let mut longer = Vec::with_capacity(rows.len() * axis.len());
        for row in &rows {
            for coordinate in axis {
                longer.push([row.as_slice(), std::slice::from_ref(coordinate)].concat());
            }
        }
        rows = longer;
    }
    rows
}

fn axes(matrix: &Spanned, problems: &mut Problems) -> Vec<Vec<Coordinate>> {
    let Value::Map(entries) = &matrix.value else {
        if matrix.value != Value::Broken {
            problems.push(bad(matrix.span, format!("`matrix` must be a map of lists, not {}", matrix.kind())));
        }
        return vec![vec![Coordinate::broken("", matrix.span)]];
    };
    let mut axes = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        axes.push(axis(key, value, problems).unwrap_or_else(|| vec![Coordinate::broken(&key.text, value.span)]));
    }
    axes
}

/// Returns the values of a key; `None` after an error.
fn axis(key: &Key, value: &Spanned, problems: &mut Problems) -> Option<Vec<Coordinate>> {
    match &value.value {
        Value::Broken => None,
        // A key becomes part of ids, and of `${matrix.KEY}`.
        Value::List(_) | Value::Map(_) if !is_id(&key.text) => {
            refuse(problems, bad(key.span, format!("`{}` is not a valid matrix key", key.text)))
        }
        Value::List(items) if !items.is_empty() => {
            let mut named = Vec::with_capacity(items.len());
            for (position, value) in items.iter().enumerate() {
                // A list or a map has no text for the node's id: its position stands for it.
                let name = match value.scalar_text() {
                    Some(text) => plain(&text),
                    None if value.value == Value::Null => "null".to_owned(),
                    None => position.to_string(),
                };
                named.push((name, value));
            }
            Some(distinct(&key.text, false, named, problems))
        }
        Value::Map(entries) if !entries.is_empty() => {
            let named = entries.iter().map(|(name, value)| (plain(&name.text), value));
            Some(distinct(&key.text, true, named.collect(), problems))
        }
        _ => {
            let wanted = "must be a list of at least one value, or a map of named values";
            refuse(problems, bad(value.span, format!("`matrix.{}` {wanted}", key.text)))
        }
    }
}

fn bad(span: Span, message: String) -> Diagnostic {
    Diagnostic::error("bad-matrix", message)
        .at(span, "")
        .help("a matrix is written `{lr: [1e-4, 2e-4], rank: [8, 64]}`")
}

/// Returns the values of a key with their names, which must differ.
fn distinct(key: &str, is_named: bool, values: Vec<(String, &Spanned)>, problems: &mut Problems) -> Vec<Coordinate> {
    let mut seen: BTreeMap<String, Span> = BTreeMap::new();
    let mut axis = Vec::new();
    for (name, value) in values {
        if let Some(first) = seen.get(&name) {
            let fault = Diagnostic::error("bad-matrix", format!("`matrix.{key}` has `{name}` twice"));
            problems.push(fault.at(value.span, "again here").at(*first, "first here"));
        } else {
            seen.insert(name.clone(), value.span);
            axis.push(Coordinate { key: key.to_owned(), name, value: value.clone(), is_named, repeats: None });
        }
    }
    axis
}

/// Replaces characters that an id cannot have by `_`.
fn plain(text: &str) -> String {
    // A `,` or `=` would end a coordinate, and a space the whole reference.
    text.replace(|ch: char| !ch.is_alphanumeric() && !matches!(ch, '_' | '-' | '.' | '+' | '/' | ':'), "_")
}
