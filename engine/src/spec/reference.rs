//! `from:`: binds outputs of nodes to input ports.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::Budget;
use super::coordinate::{Coordinate, base, in_order, names};
use super::field::{self, Problems, refuse};
use super::model::{Binding, Gathers, NodeSpec, Reference};
use super::rounds::{self, Loop};
use super::value::{Spanned, Value};
use crate::diagnostic::Diagnostic;
use crate::node_id::{NodeId, ROUND};

/// Reads `from: a`, `from: [a, b]` or `from: {port: a, other: [b, c]}`. Each reference keeps its whole text in `node`
/// until [`link`] splits it.
pub(super) fn bindings(value: &Spanned, problems: &mut Problems) -> Vec<Binding> {
    let Value::Map(entries) = &value.value else {
        let references = references(value, "`from`", problems);
        return vec![Binding { port: None, port_span: value.span, references }];
    };
    let mut bindings = Vec::with_capacity(entries.len());
    for (port, value) in entries {
        let references = references(value, &format!("`from.{}`", port.text), problems);
        bindings.push(Binding { port: Some(port.text.clone()), port_span: port.span, references });
    }
    bindings
}

pub(super) fn references(value: &Spanned, what: &str, problems: &mut Problems) -> Vec<Reference> {
    value.as_list().iter().filter_map(|item| reference(item, what, problems)).collect()
}

fn reference(value: &Spanned, what: &str, problems: &mut Problems) -> Option<Reference> {
    let text = match &value.value {
        Value::Broken => return None,
        Value::Map(_) | Value::List(_) | Value::Null => {
            return refuse(problems, field::wrong_type(value, what, "a node or a list of nodes"));
        }
        _ => value.scalar_text()?,
    };
    if is_reference(&text) {
        return Some(Reference::to(text, value.span));
    }
    let fault = Diagnostic::error("bad-reference", format!("`{text}` is not a reference to a node"));
    let help = if text.contains('=') { "quote an id that holds a `,`" } else { "write `node` or `node.port`" };
    refuse(problems, fault.at(value.span, "").help(help))
}

fn is_reference(text: &str) -> bool {
    let (base, rest) = text.split_at(base(text).len());
    let good_rest = match rest.as_bytes().first() {
        None => true,
        // What is out of order (`step.steps@round=3`) is reported when it is known whether it names a loop.
        Some(b'.') => match rest[1..].split_once('@') {
            Some((port, rest)) => field::is_id(port) && is_coordinates(rest),
            None => field::is_id(&rest[1..]),
        },
        Some(_) => is_coordinates(&rest[1..]),
    };
    field::is_id(base) && good_rest
}

fn is_coordinates(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace)
}

/// Splits references, and expands those to a node with a matrix and to loops.
pub(super) fn link(nodes: &mut [NodeSpec], loops: &[Loop], problems: &mut Problems) {
    let mut targets = Targets::new(nodes, loops);
    for node in nodes {
        let mut linked = Vec::new();
        for binding in node.bindings() {
            let references = binding.references.iter();
            linked.push(references.flat_map(|one| targets.link_one(one, node, problems)).collect());
        }
        for (binding, references) in node.bindings_mut().zip(linked) {
            binding.references = references;
        }
    }
}

/// A node of a matrix: its id and coordinates.
struct Member {
    id: NodeId,
    coordinates: Vec<(String, String)>,
}

/// All nodes of one matrix, indexed by coordinates (by shared keys, then by their values).
#[derive(Default)]
struct Family {
    members: Vec<Member>,
    keys: BTreeSet<String>,
    /// Whether values of the matrix could not be read.
    broken: bool,
    /// The loop that they are part of.
    repeats: Option<String>,
    by_values: BTreeMap<Vec<String>, BTreeMap<Vec<String>, Vec<usize>>>,
}

impl Family {
    /// Returns the members that have those values at the keys they share.
    fn agreeing(&mut self, coordinates: &[(String, String)]) -> Vec<&Member> {
        let mut wanted = coordinates.to_vec();
        wanted.retain(|(key, _)| self.keys.contains(key));
        wanted.sort();
        let (keys, values): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let members = &self.members;
        // Every node of another matrix asks for the same keys: comparing all pairs of nodes would be slow.
        let index = self.by_values.entry(keys.clone()).or_insert_with(|| index(members, &keys));
        index.get(&values).into_iter().flatten().map(|position| &members[*position]).collect()
    }
}

fn index(members: &[Member], keys: &[String]) -> BTreeMap<Vec<String>, Vec<usize>> {
    let mut index: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
    for (position, member) in members.iter().enumerate() {
        let pairs = keys.iter().filter_map(|key| member.coordinates.iter().find(|(name, _)| name == key));
        index.entry(pairs.map(|(_, value)| value.clone()).collect()).or_default().push(position);
    }
    index
}

/// Nodes of matrices, by the id before `@`.
struct Targets<'l> {
    families: BTreeMap<String, Family>,
    loops: BTreeMap<&'l str, &'l Loop>,
    budget: Budget,
}

impl<'l> Targets<'l> {
    fn new(nodes: &[NodeSpec], loops: &'l [Loop]) -> Self {
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        for node in nodes.iter().filter(|node| !node.matrix.is_empty()) {
            let family = families.entry(base(&node.id).to_owned()).or_default();
            let coordinates = names(&node.matrix);
            family.keys.extend(coordinates.iter().map(|(key, _)| key.clone()));
            family.members.push(Member { id: node.id.clone(), coordinates });
            family.repeats = node.round().map(|(name, _)| name.to_owned());
            family.broken |= node.matrix.iter().any(Coordinate::is_broken);
        }
        let loops = loops.iter().map(|repeats| (repeats.name.as_str(), repeats)).collect();
        Self { families, loops, budget: Budget::default() }
    }

    fn link_one(&mut self, reference: &Reference, node: &NodeSpec, problems: &mut Problems) -> Vec<Reference> {
        // What a round takes from the one before is named by that round.
        let repeats = self.loops.get(base(&reference.node)).filter(|_| reference.round.is_none());
        let meant = match (repeats, out_of_order(reference)) {
            (Some(repeats), _) => rounds::output(repeats, reference, node).map(|(output, name)| (output, Some(name))),
            (None, Some(fault)) => Err(fault),
            (None, None) => Ok((reference.clone(), None)),
        };
        let (reference, written) = match meant {
            Ok(meant) => meant,
            Err(fault) => {
                problems.push(fault);
                return Vec::new();
            }
        };
        let text = reference.node.as_str();
        let family = self.families.get_mut(base(text));
        let (id, wanted, port) = take_apart(text, family.as_deref().map_or(&[], |family| &family.members));
        let linked = Reference { port, handed_on: reference.handed_on, ..Reference::to(id.to_owned(), reference.span) };
        let Some(family) = family else { return vec![linked] };
        let stated = wanted.as_ref().is_some_and(|wanted| wanted.contains(&ALL));
        let coordinates = match wanted {
            None => joined(node, family, reference.round),
            Some(wanted) => {
                let wanted = wanted.into_iter().filter(|pair| *pair != ALL);
                wanted.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
            }
        };
        let is_open = family.keys.iter().any(|key| coordinates.iter().all(|(name, _)| name != key));
        let gathers = (stated || is_open).then(|| {
            let mut fixed = coordinates.clone();
            let mut name = base(text);
            // Which round it will be is not known yet.
            if reference.handed_on {
                name = written.as_deref().unwrap_or(name);
                fixed.retain(|(key, _)| key != ROUND);
            }
            Gathers { id: id_of_all(name, &fixed, family), stated }
        });
        let mut found = Vec::new();
        if coordinates.iter().all(|(key, _)| family.keys.contains(key)) {
            for member in family.agreeing(&coordinates) {
                let node = member.id.as_str().to_owned();
                found.push(Reference { node, gathers: gathers.clone(), ..linked.clone() });
            }
        }
        if found.is_empty() && !family.broken {
            problems.push(no_match(&reference, node, &family.members));
        }
        let had_spent = self.budget.spent();
        if self.budget.charge(found.len()) {
            return found;
        }
        // Reported once: every reference after it is beyond the limit, too.
        if !had_spent {
            let fault =
                Diagnostic::error("too-many-values", "references to nodes with a matrix expand to too many edges");
            problems.push(fault.at(reference.span, "here at the latest"));
        }
        Vec::new()
    }
}

/// Reports coordinates behind a port.
fn out_of_order(reference: &Reference) -> Option<Diagnostic> {
    let meant = in_order(&reference.node)?;
    let text = &reference.node;
    let fault = Diagnostic::error("bad-reference", format!("`{text}` has its port before its coordinates"));
    // In a flow list or map, a comma would end it.
    let quoted = if text.contains(',') { format!("\"{meant}\"") } else { meant };
    Some(fault.at(reference.span, "").help(format!("write `{quoted}`")))
}

/// Returns the coordinates at which a node and those of a family agree: the keys that both have. Rounds of different loops
/// have nothing to do with each other.
fn joined(node: &NodeSpec, family: &Family, round: Option<u64>) -> Vec<(String, String)> {
    let is_of_loop = family.repeats.is_some();
    let is_same_loop = round.is_none() && node.round().map(|(name, _)| name) == family.repeats.as_deref();
    let mut shared = names(&node.matrix);
    shared.retain(|(key, _)| family.keys.contains(key) && (key != ROUND || !is_of_loop || is_same_loop));
    if let Some(round) = round.filter(|_| is_of_loop) {
        shared.push((ROUND.to_owned(), round.to_string()));
    }
    shared
}

/// What `@all` is taken apart to: it leaves the keys open that are not written beside it.
const ALL: (&str, &str) = ("all", "");

fn id_of_all(base: &str, fixed: &[(String, String)], family: &Family) -> NodeId {
    // In the order of the matrix, as in the ids of its nodes.
    let pairs = family.members.first().into_iter().flat_map(|member| &member.coordinates);
    let fixed: Vec<_> = pairs.filter_map(|(key, _)| fixed.iter().find(|(name, _)| name == key)).cloned().collect();
    let fixed = NodeId::new(base, &fixed);
    let comma = if fixed.is_variant() { "," } else { "@" };
    format!("{fixed}{comma}{}", ALL.0).into()
}

type Parts<'r> = (&'r str, Option<Vec<(&'r str, &'r str)>>, Option<String>);

/// Splits a reference into node, coordinates and port. Coordinates may contain dots (`train@lr=0.5.model`): the text
/// after the last dot is a port if the coordinates exist without it and not with it.
fn take_apart<'r>(text: &'r str, family: &[Member]) -> Parts<'r> {
    let Some((_, coordinates)) = text.split_once('@') else {
        return match text.split_once('.') {
            Some((node, port)) => (node, None, Some(port.to_owned())),
            None => (text, None, None),
        };
    };
    let whole = pairs(coordinates);
    // Whether it exists is asked last: that compares with every node of the matrix.
    if let Some((before, port)) = coordinates.rsplit_once('.')
        && !exists(&whole, family)
    {
        let wanted = pairs(before);
        if exists(&wanted, family) {
            return (&text[..text.len() - port.len() - 1], Some(wanted), Some(port.to_owned()));
        }
    }
    (text, Some(whole), None)
}

fn pairs(coordinates: &str) -> Vec<(&str, &str)> {
    coordinates.split(',').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect()
}

/// Whether a node of a matrix has all these coordinates.
fn exists(wanted: &[(&str, &str)], family: &[Member]) -> bool {
    family.iter().any(|member| {
        let own = &member.coordinates;
        wanted.iter().all(|pair| *pair == ALL || own.iter().any(|(key, value)| (key.as_str(), value.as_str()) == *pair))
    })
}

fn no_match(reference: &Reference, node: &NodeSpec, family: &[Member]) -> Diagnostic {
    const SHOWN: usize = 4;
    let ids: Vec<_> = family.iter().take(SHOWN).map(|member| format!("`{}`", member.id)).collect();
    let rest = if family.len() > SHOWN { format!(" and {} more", family.len() - SHOWN) } else { String::new() };
    let message = format!("no node of the matrix of `{}` matches", base(&reference.node));
    let fault = Diagnostic::error("matrix-mismatch", message).at(reference.span, format!("in `{}`", node.id));
    fault.help(format!("available: {}{rest}", ids.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_in_coordinates_is_no_port() {
        let member = |lr: &str| {
            let coordinates = vec![("lr".to_owned(), lr.to_owned()), ("rank".to_owned(), "8".to_owned())];
            Member { id: format!("t@lr={lr},rank=8").into(), coordinates }
        };
        let family = vec![member("0.5"), member("0.5.1")];
        let apart = |text| take_apart(text, &family);
        let port = Some("model".to_owned());
        assert_eq!(apart("t.model"), ("t", None, port.clone()));
        assert_eq!(apart("t@lr=0.5"), ("t@lr=0.5", Some(vec![("lr", "0.5")]), None));
        assert_eq!(apart("t@lr=0.5.1"), ("t@lr=0.5.1", Some(vec![("lr", "0.5.1")]), None));
        assert_eq!(apart("t@lr=0.5.model"), ("t@lr=0.5", Some(vec![("lr", "0.5")]), port.clone()));
        assert_eq!(apart("t@all.model"), ("t@all", Some(vec![("all", "")]), port.clone()));
        let both = Some(vec![("lr", "0.5.1"), ("rank", "8")]);
        assert_eq!(apart("t@lr=0.5.1,rank=8.model"), ("t@lr=0.5.1,rank=8", both, port));
    }
}
