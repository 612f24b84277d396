//! Loops after unrolling: what their last rounds hand on, and references to it.

use std::collections::{BTreeMap, BTreeSet};

use super::coordinate::{base, in_order, names};
use super::field::Problems;
use super::model::{HandedOnSpec, LoopSpec, NodeSpec, Reference, RoundSpec};
use super::suggest;
use crate::diagnostic::{Diagnostic, Span};
use crate::node_id::{NodeId, ROUND};

/// A loop after unrolling: what its last round hands on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loop {
    pub(super) name: String,
    pub(super) span: Span,
    /// Its last round, counted from 0.
    pub(super) last: u64,
    /// What a round carries to the next one, by name: the reference to an output.
    pub(super) next: BTreeMap<String, String>,
    /// Whether nodes named like the loop decide after its rounds.
    pub(super) decides: bool,
    /// Whether they may end it.
    pub(super) stops: bool,
}

/// Returns the output that a reference to a loop (`rl.policy`, `rl.policy@seed=1`) stands for: that of its last round, until
/// rows decide which round it is of. Also returns its name without coordinates.
pub(super) fn output(
    repeats: &Loop,
    reference: &Reference,
    node: &NodeSpec,
) -> Result<(Reference, String), Diagnostic> {
    let name = &repeats.name;
    // A node of the loop would wait for its own end.
    if node.round().is_some_and(|(of, _)| of == name) {
        let fault = bad(
            reference.span,
            format!("`{}` is what the loop `{name}` ends with, and `{}` is part of it", reference.node, base(&node.id)),
        );
        return Err(fault.help("name what the round starts from without the name of the loop"));
    }
    let names: Vec<&str> = repeats.next.keys().map(String::as_str).collect();
    let written = in_order(&reference.node).unwrap_or_else(|| reference.node.clone());
    let (before, port) = written.rsplit_once('.').unwrap_or((&written, ""));
    let (of, coordinates) = before.split_once('@').unwrap_or((before, ""));
    let wanted = if of == name { port } else { "" };
    let Some(text) = repeats.next.get(wanted) else {
        let fault = bad(reference.span, format!("`{}` is nothing that the loop `{name}` carries", reference.node));
        let near = suggest::closest(wanted, names.iter().copied()).or(names.first().copied());
        return Err(fault.help_some(near.map(|near| format!("write `{name}.{near}` for what its last round hands on"))));
    };
    let mut text = text.clone();
    if !coordinates.is_empty() {
        let at = base(&text).len();
        text.insert_str(at, &format!("@{coordinates},{ROUND}={}", repeats.last));
    }
    let output = Reference { node: text, round: Some(repeats.last), handed_on: repeats.decides, ..reference.clone() };
    Ok((output, format!("{name}.{wanted}")))
}

/// Lists what loops hand on, one entry for each combination of a loop's matrix.
pub(super) fn handed_on(loops: &[Loop], nodes: &[NodeSpec]) -> Vec<HandedOnSpec> {
    let mut of_last: BTreeMap<(&str, &str), Vec<&NodeSpec>> = BTreeMap::new();
    let last: BTreeMap<&str, u64> = loops.iter().map(|repeats| (repeats.name.as_str(), repeats.last)).collect();
    for node in nodes {
        if let Some((name, round)) = node.round()
            && last.get(name) == Some(&round)
        {
            of_last.entry((name, base(&node.id))).or_default().push(node);
        }
    }
    let mut found = Vec::new();
    for repeats in loops {
        for (key, text) in &repeats.next {
            // Coordinates may contain dots, so that no port is read from a reference with them.
            let port = text.split_once('.').filter(|_| !text.contains('@')).map(|(_, port)| port.to_owned());
            for node in of_last.get(&(repeats.name.as_str(), base(text))).into_iter().flatten() {
                let variant = &node.id_of_rounds()[base(&node.id).len()..];
                let name = format!("{}.{key}{variant}", repeats.name);
                found.push(HandedOnSpec { name, node: node.id.clone(), port: port.clone() });
            }
        }
    }
    found
}

/// Lists the rounds of the loops about which rows decide, one entry for each combination of a loop's matrix.
pub(super) fn decided(loops: &[Loop], nodes: &[NodeSpec]) -> Vec<LoopSpec> {
    let mut found: Vec<LoopSpec> = Vec::new();
    let deciding = loops.iter().filter(|repeats| repeats.decides);
    let deciding: BTreeMap<&str, &Loop> = deciding.map(|repeats| (repeats.name.as_str(), repeats)).collect();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes {
        let Some((name, number)) = node.round() else { continue };
        let Some(repeats) = deciding.get(name) else { continue };
        let before = node.matrix.split(|coordinate| coordinate.repeats.is_some()).next().unwrap_or_default();
        let id: String = NodeId::new(name, &names(before)).into();
        let place = *places.entry(id.clone()).or_insert_with(|| {
            found.push(LoopSpec { id, span: repeats.span, stops: repeats.stops, rounds: Vec::new() });
            found.len() - 1
        });
        let rounds = &mut found[place].rounds;
        let number = number as usize;
        // Nodes come in any order of rounds.
        rounds.resize_with(rounds.len().max(number + 1), RoundSpec::default);
        if decides(node) {
            rounds[number].decision.clone_from(&node.id);
        } else {
            rounds[number].nodes.push(node.id.clone());
        }
    }
    found
}

/// Whether the node decides after a round of its loop.
pub(super) fn decides(node: &NodeSpec) -> bool {
    node.round().is_some_and(|(name, _)| name == base(&node.id))
}

/// Reports loops that have the name of a node or of another loop.
pub(super) fn check_names(loops: &[Loop], nodes: &[NodeSpec], problems: &mut Problems) {
    let deciding = loops.iter().filter(|repeats| repeats.decides);
    let deciding: BTreeSet<&str> = deciding.map(|repeats| repeats.name.as_str()).collect();
    // Nodes that decide have the name of their loop.
    let others = nodes.iter().filter(|node| !decides(node) || !deciding.contains(base(&node.id)));
    let ids: BTreeMap<&str, Span> = others.map(|node| (base(&node.id), node.id_span)).collect();
    let mut seen: BTreeMap<&str, Span> = BTreeMap::new();
    for repeats in loops {
        let name = repeats.name.as_str();
        let first = ids.get(name).copied().or_else(|| seen.insert(name, repeats.span));
        if let Some(first) = first {
            let fault = Diagnostic::error("duplicate-node", format!("a node or loop `{name}` is there already"));
            problems.push(fault.at(repeats.span, "again here").at(first, "first here").help("rename one of them"));
        }
    }
}

/// An error in a loop.
pub(super) fn bad(span: Span, message: String) -> Diagnostic {
    Diagnostic::error("bad-repeat", message).at(span, "")
}
