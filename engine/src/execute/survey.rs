//! What a run would do, without doing it: which nodes are known, which would run, and why.

use std::path::Path;

use super::driver::last_nodes;
use super::identity::{Known, Parts};
use super::resolve::{Lookup, lookup, reasons};
use crate::fingerprint::{NodeKey, Reason, SourceDigests};
use crate::plan::Plan;
use crate::store::{NodeResult, Store};

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
    /// It would run.
    Run {
        /// Its key.
        key: NodeKey,
        /// Why.
        reasons: Vec<Reason>,
    },
    /// It depends on nodes that would run: its key is not known before. If they give the same bytes as last time, it
    /// will not run.
    Unknown {
        /// Nodes it waits for.
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

/// Looks every node up. `limit` as it would be given to the run.
#[must_use]
pub fn survey(plan: &Plan, store: &Store, directory: &Path, limit: Option<u64>) -> Survey {
    let mut known = Known::new();
    let mut sources = SourceDigests::new(store.known_sources());
    let last = last_nodes(store, plan.name(), "");
    let mut nodes = Vec::with_capacity(plan.nodes().len());
    for (place, node) in plan.nodes().iter().enumerate() {
        let status = match Parts::gather(node, &known, &mut sources, directory, limit) {
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
                match lookup(store, node, &key) {
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
