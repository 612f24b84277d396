//! Which nodes a run is about: targets, `--from`, `--to`, `--only`.

use std::collections::BTreeSet;

use super::graph::Plan;

/// What the command line chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// These and all they need (also `--to`). Empty: everything.
    pub targets: Vec<String>,
    /// Only these and what depends on them; the rest must be known.
    pub from: Vec<String>,
    /// Exactly these; the rest must be known.
    pub only: Vec<String>,
}

/// Places of the nodes to run, and of those that are only looked up.
///
/// # Errors
/// With an id that the plan has not.
pub fn select(plan: &Plan, selection: &Selection) -> Result<BTreeSet<usize>, String> {
    let mut chosen: BTreeSet<usize> = if selection.targets.is_empty() {
        (0..plan.nodes().len()).collect()
    } else {
        reach(places(plan, &selection.targets)?, |node| plan.dependencies(node))
    };
    if !selection.from.is_empty() {
        let below = reach(places(plan, &selection.from)?, |node| plan.dependents(node));
        chosen = chosen.intersection(&below).copied().collect();
    }
    if !selection.only.is_empty() {
        chosen = places(plan, &selection.only)?.into_iter().collect();
    }
    Ok(chosen)
}

/// The chosen nodes and all that stand before them: nothing is asked of the others.
#[must_use]
pub fn with_all_before(plan: &Plan, chosen: &BTreeSet<usize>) -> BTreeSet<usize> {
    reach(chosen.iter().copied().collect(), |node| plan.dependencies(node))
}

/// A target names a node, a port of it (`node.port`), or every point of a matrix (`train` for `train@lr=…`).
fn places(plan: &Plan, ids: &[String]) -> Result<Vec<usize>, String> {
    let mut found = Vec::new();
    for id in ids {
        let node = id.split_once('.').map_or(id.as_str(), |(node, _)| node);
        let exact = plan.node(id).or_else(|| plan.node(node)).map(|(place, _)| place);
        let before = found.len();
        match exact {
            Some(place) => found.push(place),
            None => found.extend(
                plan.nodes()
                    .iter()
                    .enumerate()
                    .filter(|(_, n)| n.id().split_once('@').is_some_and(|(base, _)| base == id))
                    .map(|(place, _)| place),
            ),
        }
        if found.len() == before {
            return Err(id.clone());
        }
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
