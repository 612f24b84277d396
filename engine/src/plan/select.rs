//! Selects the nodes of a run: targets, `--from`, `--to`, `--only`.

use std::collections::BTreeSet;

use super::graph::{Node, Plan};
use super::named::OfLoop;

/// The selection from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// These nodes and their dependencies (also `--to`). Empty: all nodes.
    pub targets: Vec<String>,
    /// Only these nodes and their dependents; the results of all others must be known.
    pub from: Vec<String>,
    /// Exactly these nodes; the results of all others must be known.
    pub only: Vec<String>,
}

/// Returns the places of the nodes to run.
///
/// # Errors
/// Fails with the first id that the plan does not have.
pub fn select(plan: &Plan, selection: &Selection) -> Result<BTreeSet<usize>, String> {
    let mut chosen: BTreeSet<usize> = if selection.targets.is_empty() {
        (0..plan.nodes.len()).collect()
    } else {
        reach(named_by(plan, &selection.targets)?, |node| plan.dependencies(node))
    };
    if !selection.from.is_empty() {
        let below = reach(named_by(plan, &selection.from)?, |node| plan.dependents(node));
        chosen = chosen.intersection(&below).copied().collect();
    }
    if !selection.only.is_empty() {
        chosen = named_by(plan, &selection.only)?.into_iter().collect();
    }
    Ok(chosen)
}

/// Returns the places of nodes that were named by their own id (not by one that stands for all variants or rounds), and of
/// those that no other selected node uses.
pub fn asked_for(plan: &Plan, selection: &Selection, selected: &BTreeSet<usize>) -> BTreeSet<usize> {
    let named = selection.targets.iter().chain(&selection.from).chain(&selection.only);
    let is_last = |place: &usize| plan.dependents(*place).iter().all(|user| !selected.contains(user));
    named.filter_map(|id| node_of(plan, id)).chain(selected.iter().copied().filter(is_last)).collect()
}

/// Returns the outputs named by a selection that loops hand on.
pub fn asked_of_loops(plan: &Plan, selection: &Selection) -> Vec<OfLoop> {
    let named = selection.targets.iter().chain(&selection.from).chain(&selection.only);
    named.filter(|id| node_of(plan, id).is_none()).flat_map(|id| plan.of_loops(id)).collect()
}

/// Returns the node of that id, or of that id and a port. Coordinates may contain dots.
fn node_of(plan: &Plan, id: &str) -> Option<usize> {
    let of_port = || plan.node(id.rsplit_once('.')?.0).or_else(|| plan.node(id.split_once('.')?.0));
    plan.node(id).or_else(of_port).map(|(place, _)| place)
}

/// Adds all dependencies to the chosen nodes; a run ignores the other nodes.
pub fn with_all_before(plan: &Plan, chosen: &BTreeSet<usize>) -> BTreeSet<usize> {
    reach(chosen.iter().copied().collect(), |node| plan.dependencies(node))
}

/// Adds dependencies, but none of nodes whose outputs are known.
pub fn with_all_before_but(plan: &Plan, chosen: &BTreeSet<usize>, known: impl Fn(usize) -> bool) -> BTreeSet<usize> {
    let next = |node| if known(node) { Vec::new() } else { plan.dependencies(node) };
    reach(chosen.iter().copied().collect(), next)
}

/// Resolves names: a node, one of its ports (`node.port`), every variant of a matrix (`train`, `train.model` for
/// `train@lr=…`), or what loops hand on (`rl.policy`).
///
/// # Errors
/// Fails with the first id that the plan does not have.
pub fn named_by(plan: &Plan, ids: &[String]) -> Result<Vec<usize>, String> {
    let mut found = Vec::new();
    for id in ids {
        let (written, port) = id.split_once('.').map_or((id.as_str(), None), |(node, port)| (node, Some(port)));
        let variant = |(_, node): &(usize, &Node)| {
            let is_it = node.id().is_variant() && node.id().name() == written;
            is_it && !node.spec.matrix.is_empty() && port.is_none_or(|port| node.outputs.contains_key(port))
        };
        let variants = || plan.nodes.iter().enumerate().filter(variant).map(|(place, _)| place);
        let mut places: Vec<usize> = node_of(plan, id).map_or_else(|| variants().collect(), |place| vec![place]);
        if places.is_empty() {
            places.extend(plan.of_loops(id).iter().flat_map(OfLoop::behind));
        }
        if places.is_empty() {
            return Err(id.clone());
        }
        found.extend(places);
    }
    Ok(found)
}

fn reach(start: Vec<usize>, next: impl Fn(usize) -> Vec<usize>) -> BTreeSet<usize> {
    let mut seen: BTreeSet<usize> = start.iter().copied().collect();
    let mut pending = start;
    while let Some(node) = pending.pop() {
        pending.extend(next(node).into_iter().filter(|near| seen.insert(*near)));
    }
    seen
}
