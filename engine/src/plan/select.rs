//! Selects the nodes of a run: targets, `--from`, `--to`, `--only`.

use petgraph::graph::NodeIndex;
use std::collections::BTreeSet;

use super::graph::{Node, Plan};
use super::loop_output::OfLoop;

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

/// Returns the nodes to run.
///
/// # Errors
/// Fails with the first id that the plan does not have.
pub fn select(plan: &Plan, selection: &Selection) -> Result<BTreeSet<NodeIndex>, String> {
    let mut chosen: BTreeSet<NodeIndex> = if selection.targets.is_empty() {
        plan.indices().collect()
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

/// Returns the nodes that were named by their own id (not by one that stands for all variants or rounds), and of
/// those that no other selected node uses.
pub fn asked_for(plan: &Plan, selection: &Selection, selected: &BTreeSet<NodeIndex>) -> BTreeSet<NodeIndex> {
    let named = selection.targets.iter().chain(&selection.from).chain(&selection.only);
    let is_last = |index: &NodeIndex| plan.dependents(*index).iter().all(|user| !selected.contains(user));
    named.filter_map(|id| node_of(plan, id)).chain(selected.iter().copied().filter(is_last)).collect()
}

/// Returns the outputs named by a selection that loops hand on.
pub fn asked_of_loops(plan: &Plan, selection: &Selection) -> Vec<OfLoop> {
    let named = selection.targets.iter().chain(&selection.from).chain(&selection.only);
    named.filter(|id| node_of(plan, id).is_none()).flat_map(|id| plan.of_loops(id)).collect()
}

/// Returns the node of that id, or of that id and a port. Coordinates may contain dots.
fn node_of(plan: &Plan, id: &str) -> Option<NodeIndex> {
    let of_port = || plan.node(id.rsplit_once('.')?.0).or_else(|| plan.node(id.split_once('.')?.0));
    plan.node(id).or_else(of_port).map(|(index, _)| index)
}

/// Adds all dependencies to the chosen nodes; a run ignores the other nodes.
pub fn with_all_before(plan: &Plan, chosen: &BTreeSet<NodeIndex>) -> BTreeSet<NodeIndex> {
    reach(chosen.iter().copied().collect(), |node| plan.dependencies(node))
}

/// Adds dependencies, but none of nodes whose outputs are known.
pub fn with_all_before_but(
    plan: &Plan,
    chosen: &BTreeSet<NodeIndex>,
    known: impl Fn(NodeIndex) -> bool,
) -> BTreeSet<NodeIndex> {
    let next = |node| if known(node) { Vec::new() } else { plan.dependencies(node) };
    reach(chosen.iter().copied().collect(), next)
}

/// Resolves names: a node, one of its ports (`node.port`), every variant of a matrix (`train`, `train.model` for
/// `train@lr=…`), or what loops hand on (`rl.policy`).
///
/// # Errors
/// Fails with the first id that the plan does not have.
pub fn named_by(plan: &Plan, ids: &[String]) -> Result<Vec<NodeIndex>, String> {
    let mut found = Vec::new();
    for id in ids {
        let (written, port) = id.split_once('.').map_or((id.as_str(), None), |(node, port)| (node, Some(port)));
        let variant = |(_, node): &(NodeIndex, &Node)| {
            let is_it = node.id().is_variant() && node.id().name() == written;
            is_it && !node.spec.matrix.is_empty() && port.is_none_or(|port| node.outputs.contains_key(port))
        };
        let variants = || plan.indexed().filter(variant).map(|(index, _)| index);
        let mut indices: Vec<NodeIndex> = node_of(plan, id).map_or_else(|| variants().collect(), |index| vec![index]);
        if indices.is_empty() {
            indices.extend(plan.of_loops(id).iter().flat_map(OfLoop::behind));
        }
        if indices.is_empty() {
            return Err(id.clone());
        }
        found.extend(indices);
    }
    Ok(found)
}

fn reach(start: Vec<NodeIndex>, next: impl Fn(NodeIndex) -> Vec<NodeIndex>) -> BTreeSet<NodeIndex> {
    let mut seen: BTreeSet<NodeIndex> = start.iter().copied().collect();
    let mut pending = start;
    while let Some(node) = pending.pop() {
        pending.extend(next(node).into_iter().filter(|near| seen.insert(*near)));
    }
    seen
}
