//! What a run would do, without doing it: which nodes are known, which would run, and why.

use std::collections::BTreeMap;
use std::path::Path;

use super::driver::last_nodes;
use super::identity::{Known, Parts};
use super::resolve::{Lookup, Retry, lookup, reasons};
use super::versions::version;
use super::work::Work;
use crate::fingerprint::{NodeKey, Reason, SourceDigests, SourceProblem};
use crate::operator::InputArtifact;
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

impl NodeStatus {
    /// Is its result there, so that it will not run?
    #[must_use]
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Cached { .. } | Self::Frozen)
    }
}

/// The status of every node, in plan order.
#[derive(Clone, Debug)]
pub struct Survey {
    /// By place in the plan.
    pub nodes: Vec<NodeStatus>,
    /// What those still have to ask that would ask an endpoint.
    pub work: BTreeMap<usize, Work>,
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
    let mut sources = SourceDigests::new(store.known_sources(), version);
    let last = last_nodes(store, plan, "");
    let mut nodes = Vec::with_capacity(plan.nodes().len());
    let mut work = BTreeMap::new();
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
                match lookup(store, node, &key, Retry::Failed) {
                    Lookup::Hit(result) => {
                        known.insert(place, result.outputs.clone());
                        NodeStatus::Cached { key, result }
                    }
                    Lookup::Miss(mut found) => {
                        if found.is_empty() {
                            found = reasons(store, last.get(node.id()), &key, &preimage);
                        }
                        work.extend(Some(place).zip(work_of(store, node, &parts, &known)));
                        NodeStatus::Run { key, reasons: found }
                    }
                }
            }
        };
        if matches!(status, NodeStatus::Unknown { .. }) {
            work.extend(Some(place).zip(node.operator.endpoint().map(Work::later)));
        }
        nodes.push(status);
    }
    Survey { nodes, work }
}

/// Of these places, those whose results are not known. The store is only asked where there are any.
#[must_use]
pub fn not_known(
    plan: &Plan,
    store: &Store,
    directory: &Path,
    limit: Option<u64>,
    mut places: Vec<usize>,
) -> Vec<usize> {
    if !places.is_empty() {
        let survey = survey(plan, store, directory, limit);
        places.retain(|place| !survey.nodes[*place].is_known());
    }
    places
}

/// What a node still has to ask that asks an endpoint.
fn work_of(store: &Store, node: &Node, parts: &Parts, known: &Known) -> Option<Work> {
    let endpoint = node.operator.endpoint()?;
    let rows = || {
        let shape = node.operator.rows()?;
        let main = node.inputs.iter().find(|input| Some(&input.port) == node.main_port.as_ref())?;
        let record = known.get(&main.node)?.get(&main.output)?;
        match store.open_input(&record.id).ok()? {
            InputArtifact::Rows(rows) => Work::of(store, node, parts, shape, &rows).ok(),
            InputArtifact::Tree(_) => None,
        }
    };
    Some(rows().unwrap_or_else(|| Work::later(endpoint)))
}

/// Places of the nodes whose result is known and lacks rows: rejects of external nodes, and rows that `on_error: drop`
/// passed over.
#[must_use]
pub fn failed_rows(plan: &Plan, store: &Store, directory: &Path, limit: Option<u64>) -> Vec<usize> {
    let survey = survey(plan, store, directory, limit);
    let failed = |status: &NodeStatus| match status {
        NodeStatus::Cached { result, .. } => result.dropped > 0,
        NodeStatus::Run { reasons, .. } => reasons.iter().any(|reason| matches!(reason, Reason::RejectsRetried { .. })),
        _ => false,
    };
    survey.nodes.iter().enumerate().filter(|(_, status)| failed(status)).map(|(place, _)| place).collect()
}
