//! `from:` — which outputs of which nodes go to which port.

use std::collections::BTreeMap;

use super::field::{self, Problems};
use super::pipeline::{Binding, NodeSpec, Reference};
use super::value::{Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};

/// Reads `from: a`, `from: [a, b]` or `from: {port: a, other: [b, c]}`. Each reference holds its whole text in `node`
/// until [`link`] takes it apart.
pub(super) fn bindings(value: &Spanned, problems: &mut Problems) -> Vec<Binding> {
    let Value::Map(entries) = &value.value else {
        let references = references(value, "`from`", problems);
        return vec![Binding { port: None, port_span: value.span, references }];
    };
    let bind = |(port, value): &(super::value::Key, Spanned)| Binding {
        port: Some(port.text.clone()),
        port_span: port.span,
        references: references(value, &format!("`from.{}`", port.text), problems),
    };
    entries.iter().map(bind).collect()
}

fn references(value: &Spanned, what: &str, problems: &mut Problems) -> Vec<Reference> {
    match &value.value {
        Value::List(items) => items.iter().filter_map(|item| reference(item, what, problems)).collect(),
        _ => reference(value, what, problems).into_iter().collect(),
    }
}

fn reference(value: &Spanned, what: &str, problems: &mut Problems) -> Option<Reference> {
    let text = match &value.value {
        Value::Broken => return None,
        Value::Map(_) | Value::List(_) | Value::Null => {
            problems.push(field::wrong_type(value, what, "a node or a list of nodes"));
            return None;
        }
        _ => value.scalar_text()?,
    };
    if is_reference(&text) {
        return Some(Reference { node: text, port: None, span: value.span });
    }
    let fault = Diagnostic::error("bad-reference", format!("`{text}` refers to no output of a node"));
    problems.push(fault.at(value.span, "").help("write `node` or `node.port`"));
    None
}

fn is_reference(text: &str) -> bool {
    let (base, rest) = text.split_at(base(text).len());
    let good_rest = match rest.as_bytes().first() {
        None => true,
        Some(b'.') => field::is_id(&rest[1..]),
        Some(_) => !rest[1..].is_empty() && !rest.contains(char::is_whitespace),
    };
    field::is_id(base) && good_rest
}

/// The id before `@` or `.`.
pub(super) fn base(reference: &str) -> &str {
    reference.split(['@', '.']).next().unwrap_or_default()
}

/// Takes references apart and spreads those to a node with a matrix.
pub(super) fn link(nodes: &mut [NodeSpec], problems: &mut Problems) {
    let targets = Targets::new(nodes);
    let linked: Vec<_> = nodes.iter().map(|node| targets.link_node(node, problems)).collect();
    for (node, from) in nodes.iter_mut().zip(linked) {
        node.from = from;
    }
}

/// Nodes that a reference may mean: by id, and those of a matrix by the id before `@`.
struct Targets {
    plain: std::collections::BTreeSet<String>,
    expanded: BTreeMap<String, Vec<(String, Vec<(String, String)>)>>,
}

impl Targets {
    fn new(nodes: &[NodeSpec]) -> Self {
        let mut targets = Self { plain: std::collections::BTreeSet::new(), expanded: BTreeMap::new() };
        for node in nodes {
            targets.plain.insert(node.id.clone());
            if !node.matrix.is_empty() {
                let family = targets.expanded.entry(base(&node.id).to_owned()).or_default();
                family.push((node.id.clone(), node.matrix.clone()));
            }
        }
        targets
    }

    fn link_node(&self, node: &NodeSpec, problems: &mut Problems) -> Vec<Binding> {
        let link = |binding: &Binding| Binding {
            references: binding.references.iter().flat_map(|r| self.link_one(r, node, problems)).collect(),
            ..binding.clone()
        };
        node.from.iter().map(link).collect()
    }

    fn link_one(&self, reference: &Reference, node: &NodeSpec, problems: &mut Problems) -> Vec<Reference> {
        let (id, port) = self.split(&reference.node);
        let to = |id: &str| Reference { node: id.to_owned(), port: port.map(str::to_owned), span: reference.span };
        match self.expanded.get(id) {
            None => vec![to(id)],
            Some(family) => {
                let matching = family.iter().filter(|(_, coordinates)| agree(coordinates, &node.matrix));
                let found: Vec<_> = matching.map(|(id, _)| to(id)).collect();
                if found.is_empty() {
                    problems.push(no_match(reference.span, id, node, &family[0].0));
                }
                found
            }
        }
    }

    /// Node and port: coordinates may hold dots, so that a known id goes first.
    fn split<'r>(&self, text: &'r str) -> (&'r str, Option<&'r str>) {
        if !text.contains('@') {
            return text.split_once('.').map_or((text, None), |(node, port)| (node, Some(port)));
        }
        match text.rsplit_once('.') {
            Some((node, port)) if !self.plain.contains(text) && self.plain.contains(node) => (node, Some(port)),
            _ => (text, None),
        }
    }
}

/// Do two sets of coordinates agree where they share a key?
fn agree(theirs: &[(String, String)], ours: &[(String, String)]) -> bool {
    theirs.iter().all(|(key, value)| ours.iter().find(|(name, _)| name == key).is_none_or(|(_, own)| own == value))
}

fn no_match(span: Span, id: &str, node: &NodeSpec, example: &str) -> Diagnostic {
    Diagnostic::error("matrix-mismatch", format!("`{id}` has no coordinates that match those of `{}`", node.id))
        .at(span, "")
        .help(format!("name one of them, for example `{example}`, or give both the same matrix"))
}
