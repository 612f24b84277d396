//! Delivers outputs to their destinations once a node's result is known.

use std::collections::BTreeMap;
use std::path::PathBuf;

use indexmap::IndexMap;

use super::context::bare_context;
use super::job::Upstream;
use super::reject_share::RejectShares;
use super::run::Run;
use crate::error::OperatorError;
use crate::fingerprint::{NodeKey, Reason};
use crate::operator::{Context, PortType};
use crate::plan::{Node, NodeIndex};
use crate::store::{NodeResult, NodeRun, OutputRecord};

/// The result of a node, once it is known.
#[derive(Clone)]
pub(crate) enum KnownResult {
    /// From the store.
    Stored { key: Option<NodeKey>, outputs: IndexMap<String, OutputRecord>, figures: BTreeMap<String, f64> },
    /// From a kernel run.
    Computed { result: Box<NodeResult>, reasons: Vec<Reason>, cached_rows: u64 },
}

impl KnownResult {
    /// A result that the store has.
    pub(crate) fn stored(result: NodeResult) -> Self {
        let NodeResult { key, outputs, figures, .. } = result;
        Self::Stored { key: Some(key), outputs, figures }
    }

    /// The last result of a frozen node.
    pub(crate) fn recorded(last: NodeRun) -> Self {
        Self::Stored { key: last.key, outputs: last.outputs, figures: BTreeMap::new() }
    }

    /// Outputs that a test gives.
    pub(crate) fn given(outputs: IndexMap<String, OutputRecord>) -> Self {
        Self::Stored { key: None, outputs, figures: BTreeMap::new() }
    }

    pub(crate) fn key(&self) -> Option<NodeKey> {
        match self {
            Self::Stored { key, .. } => *key,
            Self::Computed { result, .. } => Some(result.key),
        }
    }

    /// Returns why the kernel ran in this run, and for how long.
    pub(crate) fn ran(&self) -> (Vec<Reason>, f64) {
        match self {
            Self::Stored { .. } => (Vec::new(), 0.0),
            Self::Computed { result, reasons, .. } => (reasons.clone(), result.seconds),
        }
    }

    pub(crate) fn outputs(&self) -> &IndexMap<String, OutputRecord> {
        match self {
            Self::Stored { outputs, .. } => outputs,
            Self::Computed { result, .. } => &result.outputs,
        }
    }

    pub(crate) fn into_outputs(self) -> IndexMap<String, OutputRecord> {
        match self {
            Self::Stored { outputs, .. } => outputs,
            Self::Computed { result, .. } => result.outputs,
        }
    }
}

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
    for (port, record) in result.outputs() {
        if matches!(node.outputs.get(port), Some(PortType::Tree(_))) {
            folders.insert(port.clone(), store.artifact_folder(&record.id));
        }
    }
    // Files that go nowhere may have been released, or not been fetched.
    if folders.is_empty() || declaration.destinations().is_empty() {
        return Ok(Delivery::Done(Vec::new()));
    }
    let context = bare_context(run, node);
    if let Some(why) = held_back(run, index, result, upstream, check, &folders, &context) {
        return Ok(Delivery::HeldBack(run.endpoints.redactor.strike(&why).into_owned()));
    }
    // The files may be only in a shared store so far.
    for (port, record) in result.outputs() {
        if !folders.contains_key(port) {
            continue;
        }
        if let Err(damage) = store.fetch(&record.id)? {
            let short = record.id.digest().short();
            return Err(OperatorError::machine(format!("the artifact {short} is incomplete in the store: {damage}")));
        }
    }
    declaration.deliver(&folders, &context).map(Delivery::Done)
}

/// Returns why outputs with destinations are not delivered.
fn held_back(
    run: &Run,
    index: NodeIndex,
    result: &KnownResult,
    upstream: &Upstream,
    check: Option<String>,
    folders: &BTreeMap<String, PathBuf>,
    context: &Context,
) -> Option<String> {
    if run.options.asked.deliver_anyway {
        return None;
    }
    // The first failed check on the way counts.
    if let Some(why) = upstream.held.clone().or(check) {
        return Some(why);
    }
    let mut keys = upstream.keys.clone();
    keys.extend(result.key().map(|key| (index, key)));
    let (store, directory) = (&run.store, &run.options.directory);
    let shares = RejectShares { plan: &run.plan, known: &upstream.known, keys: &keys, store, directory };
    let why = shares.held_back(index)?;
    // Somebody has decided about these rows: without a change, every night would raise the same alarm.
    let is_delivered = run.node(index).operator.declaration.is_delivered(folders, context);
    (!is_delivered).then_some(why)
}
