//! Delivers outputs to their destinations once a node's result is known.

use std::collections::BTreeMap;

use super::job::{KnownResult, Run, Upstream};
use super::reject_share::RejectShares;
use crate::error::OperatorError;
use crate::operator::PortType;
use crate::plan::{Node, NodeIndex};

/// Whether the node has outputs that may be delivered: folders only.
pub(crate) fn hands_over(node: &Node) -> bool {
    node.outputs.values().any(|port| matches!(port, PortType::Tree(_)))
}

/// What became of the outputs that have destinations.
pub(crate) enum Delivery {
    /// These destinations were written.
    Done(Vec<String>),
    /// They are held back for this reason.
    HeldBack(String),
}

/// Delivers the outputs of a node, unless they are held back: by a failed check of a node before it or of its own
/// (`check`), or because too many rows were lost. Blocking: uploads to remote destinations wait for the network.
pub(super) fn deliver(
    run: &Run,
    index: NodeIndex,
    result: &KnownResult,
    upstream: &Upstream,
    check: Option<String>,
) -> Result<Delivery, OperatorError> {
    let (node, store) = (run.node(index), &run.store);
    let declaration = &node.operator.declaration;
    let mut folders = BTreeMap::new();
    for (port, record) in &result.outputs {
        if matches!(node.outputs.get(port), Some(PortType::Tree(_))) {
            folders.insert(port.clone(), store.artifact_folder(&record.id));
        }
    }
    // Files that go nowhere may have been released, or not been fetched.
    if folders.is_empty() || declaration.destinations().is_empty() {
        return Ok(Delivery::Done(Vec::new()));
    }
    let context = run.bare_context(node);
    if !run.options.asked.deliver_anyway {
        // The first failed check on the way counts.
        let mut why = upstream.held.clone().or(check);
        if why.is_none() {
            let mut keys = upstream.keys.clone();
            keys.extend(result.key.map(|key| (index, key)));
            let directory = &run.options.directory;
            let shares = RejectShares { plan: &run.plan, known: &upstream.known, keys: &keys, store, directory };
            // Somebody has decided about these rows: without a change, every night would raise the same alarm.
            why = shares.held_back(index).filter(|_| !declaration.is_delivered(&folders, &context));
        }
        if let Some(why) = why {
            return Ok(Delivery::HeldBack(run.endpoints.redactor.strike(&why).into_owned()));
        }
    }
    // The files may be only in a shared store so far.
    for (port, record) in &result.outputs {
        if folders.contains_key(port)
            && let Err(damage) = store.fetch(&record.id)?
        {
            let short = record.id.digest().short();
            return Err(OperatorError::machine(format!("the artifact {short} is incomplete in the store: {damage}")));
        }
    }
    declaration.deliver(&folders, &context).map(Delivery::Done)
}
