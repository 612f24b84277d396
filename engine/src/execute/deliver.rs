//! Puts outputs where the user wants them, after a node's result is known.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::operator::{Context, OperatorError, PortType};
use crate::plan::Node;
use crate::store::{OutputRecord, Store};

/// Calls the operator's `deliver` with the folders of its tree outputs.
pub(super) fn deliver(
    node: &Node,
    outputs: &indexmap::IndexMap<String, OutputRecord>,
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
