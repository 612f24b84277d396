//! Delivers outputs to their destinations once a node's result is known.

use std::collections::BTreeMap;
use std::path::PathBuf;

use indexmap::IndexMap;

use crate::error::OperatorError;
use crate::fingerprint::{NodeKey, Reason};
use crate::operator::{Context, PortType};
use crate::plan::Node;
use crate::store::{NodeResult, OutputRecord, Store};

/// Where a node's outputs come from.
pub(crate) enum Made {
    /// From the store.
    Known { key: Option<NodeKey>, outputs: IndexMap<String, OutputRecord>, figures: BTreeMap<String, f64> },
    /// From a kernel run.
    Now { result: Box<NodeResult>, reasons: Vec<Reason>, cached_rows: u64 },
}

impl Made {
    pub(crate) fn key(&self) -> Option<NodeKey> {
        match self {
            Self::Known { key, .. } => *key,
            Self::Now { result, .. } => Some(result.key),
        }
    }

    /// Returns why the kernel ran in this run, and for how long.
    pub(crate) fn ran(&self) -> (Vec<Reason>, f64) {
        match self {
            Self::Known { .. } => (Vec::new(), 0.0),
            Self::Now { result, reasons, .. } => (reasons.clone(), result.seconds),
        }
    }

    pub(crate) fn outputs(&self) -> &IndexMap<String, OutputRecord> {
        match self {
            Self::Known { outputs, .. } => outputs,
            Self::Now { result, .. } => &result.outputs,
        }
    }

    pub(crate) fn into_outputs(self) -> IndexMap<String, OutputRecord> {
        match self {
            Self::Known { outputs, .. } => outputs,
            Self::Now { result, .. } => result.outputs,
        }
    }
}

/// Whether the node has outputs that may be delivered: folders only.
pub(crate) fn hands_over(node: &Node) -> bool {
    node.outputs.values().any(|port| matches!(port, PortType::Tree(_)))
}

/// Returns the folders of the node's tree outputs.
fn folders(node: &Node, outputs: &IndexMap<String, OutputRecord>, store: &Store) -> BTreeMap<String, PathBuf> {
    let mut folders = BTreeMap::new();
    for (port, record) in outputs {
        if matches!(node.outputs.get(port), Some(PortType::Tree(_))) {
            folders.insert(port.clone(), store.artifact_folder(&record.id));
        }
    }
    folders
}

/// Whether the destinations have the node's outputs already.
pub(crate) fn is_delivered(
    node: &Node,
    outputs: &IndexMap<String, OutputRecord>,
    store: &Store,
    context: &Context,
) -> bool {
    node.operator.declaration.is_delivered(&folders(node, outputs, store), context)
}

/// Calls the operator's `deliver` with the folders of its tree outputs. Blocking: uploads to remote destinations wait
/// for the network.
pub(crate) fn deliver(
    node: &Node,
    outputs: &IndexMap<String, OutputRecord>,
    store: &Store,
    context: &Context,
) -> Result<Vec<String>, OperatorError> {
    let is_tree = |port: &str| matches!(node.outputs.get(port), Some(PortType::Tree(_)));
    let folders = folders(node, outputs, store);
    // Files that go nowhere may have been released, or not been fetched.
    if folders.is_empty() || node.operator.declaration.destinations().is_empty() {
        return Ok(Vec::new());
    }
    for (_, record) in outputs.iter().filter(|(port, _)| is_tree(port)) {
        if let Err(damage) = store.fetch(&record.id)? {
            let short = record.id.digest().short();
            return Err(OperatorError::machine(format!("the artifact {short} is incomplete in the store: {damage}")));
        }
    }
    node.operator.declaration.deliver(&folders, context)
}
