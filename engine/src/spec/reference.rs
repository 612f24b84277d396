//! `from:` — which outputs of which nodes go to which port.

use std::collections::BTreeMap;

use super::field::{self, Problems};
use super::pipeline::{Binding, NodeSpec, Reference};
use super::value::{Spanned, Value};
use crate::diagnostic::Diagnostic;

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
    let help = if text.contains('=') { "quote an id that holds a `,`" } else { "write `node` or `node.port`" };
    problems.push(fault.at(value.span, "").help(help));
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

/// One node of a matrix: its id and its coordinates.
struct Member {
    id: String,
    coordinates: Vec<(String, String)>,
}

/// Nodes of a matrix by the id before `@`.
struct Targets {
    families: BTreeMap<String, Vec<Member>>,
}

impl Targets {
    fn new(nodes: &[NodeSpec]) -> Self {
        let mut families: BTreeMap<String, Vec<Member>> = BTreeMap::new();
        for node in nodes.iter().filter(|node| !node.matrix.is_empty()) {
            let member = Member { id: node.id.clone(), coordinates: node.matrix.clone() };
            families.entry(base(&node.id).to_owned()).or_default().push(member);
        }
        Self { families }
    }

    fn link_node(&self, node: &NodeSpec, problems: &mut Problems) -> Vec<Binding> {
        let link = |binding: &Binding| Binding {
            references: binding.references.iter().flat_map(|r| self.link_one(r, node, problems)).collect(),
            ..binding.clone()
        };
        node.from.iter().map(link).collect()
    }

    fn link_one(&self, reference: &Reference, node: &NodeSpec, problems: &mut Problems) -> Vec<Reference> {
        let text = reference.node.as_str();
        let family = self.families.get(base(text));
        let (id, wanted, port) = take_apart(text, family);
        let to = |id: &str| Reference { node: id.to_owned(), port: port.clone(), span: reference.span };
        let Some(family) = family else { return vec![to(id)] };
        let members = family.iter().filter(|member| match &wanted {
            Some(wanted) => contains(&member.coordinates, wanted),
            None => agree(&member.coordinates, &node.matrix),
        });
        let found: Vec<_> = members.map(|member| to(&member.id)).collect();
        if found.is_empty() {
            problems.push(no_match(reference, node, family));
        }
        found
    }
}

type Parts<'r> = (&'r str, Option<Vec<(&'r str, &'r str)>>, Option<String>);

/// Node, coordinates and port. Coordinates may hold dots (`train@lr=0.5.model`): what follows the last dot is a port
/// if the coordinates before it exist and those with it do not.
fn take_apart<'r>(text: &'r str, family: Option<&Vec<Member>>) -> Parts<'r> {
    let Some((_, coordinates)) = text.split_once('@') else {
        let (node, port) = text.split_once('.').map_or((text, None), |(node, port)| (node, Some(port)));
        return (node, None, port.map(str::to_owned));
    };
    let exists = |wanted: &[(&str, &str)]| {
        family.is_some_and(|family| family.iter().any(|member| contains(&member.coordinates, wanted)))
    };
    let whole = pairs(coordinates);
    if let Some((before, port)) = coordinates.rsplit_once('.').filter(|_| !exists(&whole)) {
        let wanted = pairs(before);
        if exists(&wanted) {
            return (&text[..text.len() - port.len() - 1], Some(wanted), Some(port.to_owned()));
        }
    }
    (text, Some(whole), None)
}

fn pairs(coordinates: &str) -> Vec<(&str, &str)> {
    coordinates.split(',').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect()
}

/// Are all those coordinates among the node's?
fn contains(coordinates: &[(String, String)], wanted: &[(&str, &str)]) -> bool {
    wanted.iter().all(|(key, value)| coordinates.iter().any(|(name, own)| name == key && own == value))
}

/// Do two sets of coordinates agree where they share a key?
fn agree(theirs: &[(String, String)], ours: &[(String, String)]) -> bool {
    theirs.iter().all(|(key, value)| ours.iter().find(|(name, _)| name == key).is_none_or(|(_, own)| own == value))
}

fn no_match(reference: &Reference, node: &NodeSpec, family: &[Member]) -> Diagnostic {
    const SHOWN: usize = 4;
    let ids: Vec<_> = family.iter().take(SHOWN).map(|member| format!("`{}`", member.id)).collect();
    let rest = if family.len() > SHOWN { format!(" and {} more", family.len() - SHOWN) } else { String::new() };
    let message = format!("no node of the matrix of `{}` fits here", base(&reference.node));
    let fault = Diagnostic::error("matrix-mismatch", message).at(reference.span, format!("in `{}`", node.id));
    fault.help(format!("there is {}{rest}", ids.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_in_coordinates_is_no_port() {
        let member = |lr: &str| {
            let coordinates = vec![("lr".to_owned(), lr.to_owned()), ("rank".to_owned(), "8".to_owned())];
            Member { id: format!("t@lr={lr},rank=8"), coordinates }
        };
        let family = vec![member("0.5"), member("0.5.1")];
        let apart = |text| take_apart(text, Some(&family));
        let port = Some("model".to_owned());
        assert_eq!(apart("t.model"), ("t", None, port.clone()));
        assert_eq!(apart("t@lr=0.5"), ("t@lr=0.5", Some(vec![("lr", "0.5")]), None));
        assert_eq!(apart("t@lr=0.5.1"), ("t@lr=0.5.1", Some(vec![("lr", "0.5.1")]), None));
        assert_eq!(apart("t@lr=0.5.model"), ("t@lr=0.5", Some(vec![("lr", "0.5")]), port.clone()));
        let both = Some(vec![("lr", "0.5.1"), ("rank", "8")]);
        assert_eq!(apart("t@lr=0.5.1,rank=8.model"), ("t@lr=0.5.1,rank=8", both, port));
    }
}
