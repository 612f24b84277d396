//! Selects the nodes of a run: targets, `--from`, `--to`, `--only`.

use petgraph::graph::NodeIndex;
use std::collections::BTreeSet;

use super::graph::Plan;
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
pub(crate) fn select(plan: &Plan, selection: &Selection) -> Result<BTreeSet<NodeIndex>, String> {
    let mut chosen: BTreeSet<NodeIndex> = plan.indices().collect();
    if !selection.targets.is_empty() {
        chosen = reach(named_by(plan, &selection.targets)?, |node| plan.dependencies(node));
    }
    if !selection.from.is_empty() {
        let below = reach(named_by(plan, &selection.from)?, |node| plan.dependents(node));
        chosen.retain(|node| below.contains(node));
    }
    // Last: `--only` stands for itself, whatever the others select.
    if !selection.only.is_empty() {
        chosen = named_by(plan, &selection.only)?.into_iter().collect();
    }
    Ok(chosen)
}

impl Selection {
    /// Iterates over all ids that the user wrote.
    fn ids(&self) -> impl Iterator<Item = &String> {
        self.targets.iter().chain(&self.from).chain(&self.only)
    }
}

/// Returns the nodes that were named by their own id (not by one that stands for all variants or rounds), and those that
/// no other selected node uses.
pub(crate) fn asked_for(plan: &Plan, selection: &Selection, selected: &BTreeSet<NodeIndex>) -> BTreeSet<NodeIndex> {
    let mut asked = BTreeSet::new();
    for id in selection.ids() {
        asked.extend(node_of(plan, id));
    }
    for node in selected {
        if plan.dependents(*node).iter().all(|user| !selected.contains(user)) {
            asked.insert(*node);
        }
    }
    asked
}

/// Returns the outputs named by a selection that loops hand on.
pub(crate) fn asked_of_loops(plan: &Plan, selection: &Selection) -> Vec<OfLoop> {
    let mut found = Vec::new();
    for id in selection.ids() {
        if node_of(plan, id).is_none() {
            found.extend(plan.of_loops(id));
        }
    }
    found
}

/// Returns the node of that id, or of that id and a port.
fn node_of(plan: &Plan, id: &str) -> Option<NodeIndex> {
    // Coordinates may contain dots: the last one may stand before the port, or the first one.
    let without_port = id.rsplit_once('.').into_iter().chain(id.split_once('.'));
    let mut ids = [id].into_iter().chain(without_port.map(|(node, _)| node));
    ids.find_map(|id| plan.by_id.get(id).copied())
}

/// Adds all dependencies to the chosen nodes; a run ignores the other nodes.
pub(crate) fn with_all_before(plan: &Plan, chosen: &BTreeSet<NodeIndex>) -> BTreeSet<NodeIndex> {
    reach(chosen.iter().copied().collect(), |node| plan.dependencies(node))
}

/// Adds dependencies, but none of nodes whose outputs are known.
pub(crate) fn with_all_before_but(
    plan: &Plan,
    chosen: &BTreeSet<NodeIndex>,
    known: impl Fn(NodeIndex) -> bool,
) -> BTreeSet<NodeIndex> {
    reach(chosen.iter().copied().collect(), |node| if known(node) { Vec::new() } else { plan.dependencies(node) })
}

/// Resolves names: a node, one of its ports (`node.port`), every variant of a matrix (`train`, `train.model` for
/// `train@lr=…`), or what loops hand on (`rl.policy`).
///
/// # Errors
/// Fails with the first id that the plan does not have.
pub(crate) fn named_by(plan: &Plan, ids: &[String]) -> Result<Vec<NodeIndex>, String> {
    let mut found = Vec::new();
    for id in ids {
        let before = found.len();
        if let Some(node) = node_of(plan, id) {
            found.push(node);
            continue;
        }
        // All nodes of a matrix or loop, or those of them that have the named port.
        let (name, port) = match id.split_once('.') {
            Some((name, port)) => (name, Some(port)),
            None => (id.as_str(), None),
        };
        for (index, node) in plan.indexed() {
            let is_variant = node.id().is_variant() && node.id().name() == name && !node.spec.matrix.is_empty();
            if is_variant && port.is_none_or(|port| node.outputs.contains_key(port)) {
                found.push(index);
            }
        }
        if found.len() == before {
            for output in plan.of_loops(id) {
                found.extend(output.behind());
            }
        }
        if found.len() == before {
            return Err(id.clone());
        }
    }
    Ok(found)
}

fn reach(start: Vec<NodeIndex>, next: impl Fn(NodeIndex) -> Vec<NodeIndex>) -> BTreeSet<NodeIndex> {
    let mut seen: BTreeSet<NodeIndex> = start.iter().copied().collect();
    let mut pending = start;
    while let Some(node) = pending.pop() {
        // A node is visited once, however many paths lead to it.
        pending.extend(next(node).into_iter().filter(|near| seen.insert(*near)));
    }
    seen
}
