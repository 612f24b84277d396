//! Puts outputs where the user wants them, after a node's result is known.

use std::collections::BTreeMap;
use std::path::PathBuf;

use indexmap::IndexMap;

use crate::fingerprint::{NodeKey, Reason};
use crate::operator::{Context, OperatorError, PortType};
use crate::plan::Node;
use crate::store::{NodeResult, OutputRecord, Store};

/// How a node's outputs became known.
pub(super) enum Made {
    /// Its result was in the store.
    Known { key: Option<NodeKey>, outputs: IndexMap<String, OutputRecord> },
    /// It ran.
    Now { result: Box<NodeResult>, reasons: Vec<Reason>, cached_rows: u64 },
}

impl Made {
    pub(super) fn key(&self) -> Option<NodeKey> {
        match self {
            Self::Known { key, .. } => *key,
            Self::Now { result, .. } => Some(result.key),
        }
    }

    pub(super) fn outputs(&self) -> &IndexMap<String, OutputRecord> {
        match self {
            Self::Known { outputs, .. } => outputs,
            Self::Now { result, .. } => &result.outputs,
        }
    }

    pub(super) fn into_outputs(self) -> IndexMap<String, OutputRecord> {
        match self {
            Self::Known { outputs, .. } => outputs,
            Self::Now { result, .. } => result.outputs,
        }
    }
}

/// Whether outputs of the node may have to be put somewhere: folders, and nothing else.
pub(super) fn hands_over(node: &Node) -> bool {
    node.outputs.values().any(|port| matches!(port, PortType::Tree(_)))
}

/// Calls the operator's `deliver` with the folders of its tree outputs. Blocks: remote destinations wait for the network.
pub(super) fn deliver(
    node: &Node,
    outputs: &IndexMap<String, OutputRecord>,
    store: &Store,
    context: &Context,
) -> Result<Vec<String>, OperatorError> {
    let is_tree = |port: &str| matches!(node.outputs.get(port), Some(PortType::Tree(_)));
    let folders: BTreeMap<String, PathBuf> = outputs
        .iter()
        .filter(|(port, _)| is_tree(port))
        .map(|(port, record)| (port.clone(), store.artifact_folder(&record.id)))
        .collect();
    if folders.is_empty() {
        return Ok(Vec::new());
    }
    for (_, record) in outputs.iter().filter(|(port, _)| is_tree(port)) {
        if let Err(damage) = store.fetch(&record.id)? {
            let short = record.id.digest().short();
            return Err(OperatorError::machine(format!("the artifact {short} is not whole in the store: {damage:?}")));
        }
    }
    node.operator.declaration.deliver(&folders, context)
}
