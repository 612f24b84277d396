//! Results that a later run replaced under the same key: by `--force`, or by retrying rejected rows.
//!
//! Of an earlier run's record of such a node, only files can be compared.

use indexmap::IndexMap;

use super::catalog::Catalog;
use super::closure::Step;
use super::findings::{Report, Severity};
use crate::fingerprint::{NodeKey, Reason};
use crate::node_id::NodeId;
use crate::operator::Repeatability;
use crate::store::{ArtifactId, NodeOutcome, NodeResult, NodeRun, OutputRecord, Store};

/// A result as recorded by an earlier run, and its replacement.
pub(super) struct Replaced {
    /// The node's name in the earlier run.
    pub(super) name: NodeId,
    key: NodeKey,
    /// The run that replaced the result.
    pub(super) by: String,
    /// Outputs that differ from the current record.
    pub(super) outputs: IndexMap<String, OutputRecord>,
}

impl Replaced {
    /// Returns `node` as recorded by `run` if a later run replaced its result. That run's ledger must say so, it must
    /// have been asked to, and the key must allow different bytes. Any other disagreement is a difference.
    pub(super) fn of(store: &Store, catalog: &Catalog, run: &str, node: &NodeRun) -> Option<Self> {
        let key = node.key?;
        let result = catalog.result(&key)?;
        // Bytes that depend on a server or on the kind of processor may differ under one key; others may not.
        let computed = result.origin.as_ref().and_then(|origin| origin.computed.as_ref());
        if computed.is_some_and(|computed| computed.repeats == Repeatability::Everywhere) {
            return None;
        }
        let mut outputs = node.outputs.clone();
        outputs.retain(|port, output| result.outputs.get(port) != Some(output));
        if outputs.is_empty() {
            return None;
        }
        for by in store.run_ids().into_iter().rev() {
            // Ids of runs sort by time. What a run after that of the current record says is of no concern.
            let is_later = by.as_str() > run && by <= result.run;
            if is_later && store.run_nodes(&by).iter().any(|node| produced_current(&by, node, result)) {
                return Some(Self { name: node.node.clone(), key, by, outputs });
            }
        }
        None
    }

    /// Whether the result produced that artifact, which no record names any more.
    pub(super) fn gave(&self, id: &ArtifactId) -> bool {
        self.outputs.iter().any(|(_, output)| output.id == *id)
    }

    /// Whether a ledger line describes this result.
    pub(super) fn is_of(&self, node: &NodeRun) -> bool {
        node.key == Some(self.key)
            && node.node == self.name
            && self.outputs.iter().all(|(port, output)| node.outputs.get(port) == Some(output))
    }

    /// Records, once per result, that it could not be checked.
    pub(super) fn note(&self, report: &mut Report) {
        if report.replaced.insert(self.key, self.by.clone()).is_none() {
            let why = format!("replaced by run {}: only its files were compared", self.by);
            let place = Some(format!("key {}", self.key.0.short()));
            report.find(Severity::Note, "record", &self.name, place, why.as_str());
            report.miss(format!("result of {}", self.name), why);
        }
    }
}

/// Whether this node of a run produced the currently recorded result because it was run again on request.
fn produced_current(run: &str, node: &NodeRun, result: &NodeResult) -> bool {
    use Reason::{CacheOff, ForceUnfinished, Forced, RejectsRetried};
    let fits = match node.outcome {
        NodeOutcome::Finished | NodeOutcome::HeldBack | NodeOutcome::CheckFailed => node.outputs == result.outputs,
        // A run that was killed right after it recorded the result does not name the outputs.
        NodeOutcome::Begun => result.run == run,
        NodeOutcome::Cached | NodeOutcome::Failed | NodeOutcome::Skipped | NodeOutcome::Ended => false,
    };
    let mut reasons = node.reasons.iter();
    node.key == Some(result.key)
        && fits
        && reasons.any(|reason| matches!(reason, Forced | CacheOff | ForceUnfinished | RejectsRetried { .. }))
}

/// Returns the replaced results among the nodes of a run's ledger.
pub(super) fn of_ledger(store: &Store, catalog: &Catalog, run: Option<&str>, ledger: &[NodeRun]) -> Vec<Replaced> {
    let Some(run) = run else { return Vec::new() };
    ledger.iter().filter_map(|node| Replaced::of(store, catalog, run, node)).collect()
}

/// Returns the replaced results behind inputs of a step without a recorded maker: the run of the step knows them.
pub(super) fn behind(store: &Store, catalog: &Catalog, step: &Step) -> Vec<Replaced> {
    let missing: Vec<ArtifactId> =
        step.inputs.iter().filter(|input| input.maker.is_none()).map(|input| input.id).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let mut nodes = store.run_nodes(&step.result.run);
    nodes.retain(|node| node.outputs.values().any(|output| missing.contains(&output.id)));
    of_ledger(store, catalog, Some(&step.result.run), &nodes)
}
