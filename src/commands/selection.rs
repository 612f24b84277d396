//! Which nodes of a plan the command line means.

use std::collections::BTreeSet;

use searchmill_engine::plan::{Node, Plan, Selection, meant_node, select};

use crate::args::ChosenArgs;
use crate::exit::Failure;

/// Places of the nodes that are meant.
pub(super) fn selected(plan: &Plan, chosen: &ChosenArgs) -> Result<BTreeSet<usize>, Failure> {
    let targets = chosen.targets.iter().chain(&chosen.to).cloned().collect();
    let selection = Selection { targets, from: chosen.from.clone(), only: chosen.only.clone() };
    select(plan, &selection).map_err(|id| unknown_node(plan, &id))
}

/// What is said of a node that the plan does not have.
pub(super) fn unknown_node(plan: &Plan, id: &str) -> Failure {
    let nodes: Vec<&str> = plan.nodes().iter().map(Node::id).collect();
    Failure::usage(format!("there is no node `{id}`")).with_help(meant_node(id, &nodes))
}
