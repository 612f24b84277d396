//! What a run would do, without doing it: which nodes are known, which would run, and why.

use std::path::Path;

use super::driver::last_nodes;
use super::identity::{Known, Parts};
use super::resolve::{Lookup, lookup, reasons};
use crate::fingerprint::{NodeKey, Reason, SourceDigests, SourceProblem};
use crate::plan::{Node, Plan};
use crate::store::{NodeResult, NodeRun, Store};

/// What would happen to a node.
#[derive(Clone, Debug)]
pub enum NodeStatus {
    /// Its result is known.
    Cached {
        /// Its key.
        key: NodeKey,
        /// The result.
        result: Box<NodeResult>,
    },
    /// It is frozen, and what it gave last is there.
    Frozen,
    /// It would run.
    Run {
        /// Its key.
        key: NodeKey,
        /// Why.
        reasons: Vec<Reason>,
    },
    /// It depends on nodes that would run, or on a file that is still to be fetched: its key is not known before. If
    /// they give the same bytes as last time, it will not run.
    Unknown {
        /// What it waits for.
        waits_for: Vec<String>,
    },
    /// A source cannot be read.
    Broken {
        /// Why.
        problem: String,
    },
}

/// The status of every node, in plan order.
#[derive(Clone, Debug)]
pub struct Survey {
    /// By place in the plan.
    pub nodes: Vec<NodeStatus>,
}

/// Is the node told to keep what it gave last, and is all of that still there?
pub(super) fn is_frozen(node: &Node, last: &NodeRun, store: &Store) -> bool {
    let whole = || last.outputs.values().all(|output| store.check(&output.id).is_ok());
    node.spec.freeze && !last.outputs.is_empty() && whole()
}

/// Looks every node up. `limit` as it would be given to the run.
#[must_use]
pub fn survey(plan: &Plan, store: &Store, directory: &Path, limit: Option<u64>) -> Survey {
    let mut known = Known::new();
    let mut sources = SourceDigests::new(store.known_sources());
    let last = last_nodes(store, plan, "");
    let mut nodes = Vec::with_capacity(plan.nodes().len());
    for (place, node) in plan.nodes().iter().enumerate() {
        if let Some(frozen) = last.get(node.id()).filter(|last| is_frozen(node, last, store)) {
            known.insert(place, frozen.outputs.clone());
            nodes.push(NodeStatus::Frozen);
            continue;
        }
        let status = match Parts::gather(node, &known, &mut sources, directory, limit) {
            Err(SourceProblem::NotFetched { address }) => {
                NodeStatus::Unknown { waits_for: vec![format!("`{address}`, which a run fetches")] }
            }
            Err(problem) => NodeStatus::Broken { problem: problem.to_string() },
            Ok(None) => {
                let unknown = node.inputs.iter().filter(|input| !known.contains_key(&input.node));
                let mut waits_for: Vec<String> =
                    unknown.map(|input| plan.nodes()[input.node].id().to_owned()).collect();
                waits_for.dedup();
                NodeStatus::Unknown { waits_for }
            }
            Ok(Some(parts)) => {
                let (key, preimage) = parts.key(node);
                match lookup(store, node, &key, true) {
                    Lookup::Hit(result) => {
                        known.insert(place, result.outputs.clone());
                        NodeStatus::Cached { key, result }
                    }
                    Lookup::Miss(found) if !found.is_empty() => NodeStatus::Run { key, reasons: found },
                    Lookup::Miss(_) => {
                        let reasons = reasons(store, last.get(node.id()), &key, &preimage);
                        NodeStatus::Run { key, reasons }
                    }
                }
            }
        };
        nodes.push(status);
    }
    Survey { nodes }
}
