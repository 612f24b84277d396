//! Results that a later run has replaced under the same key: by `--force`, or because rows that failed were tried again. Of
//! what an earlier run recorded of such a node, only the files can be compared.

use super::catalog::Catalog;
use super::closure::Step;
use super::findings::{Report, Severity};
use crate::fingerprint::{NodeKey, Reason};
use crate::operator::Repeatability;
use crate::store::{ArtifactId, NodeOutcome, NodeResult, NodeRun, OutputRecord, Store};

/// A result as an earlier run recorded it, and what replaced it.
pub(super) struct Replaced {
    /// The node, as the earlier run called it.
    pub(super) name: String,
    key: NodeKey,
    /// The run that replaced the result.
    pub(super) by: String,
    /// The outputs that are not those of the record any more.
    pub(super) outputs: Vec<(String, OutputRecord)>,
}

impl Replaced {
    /// `node` as `run` recorded it, where a later run made what the record holds now: by its own ledger, because it was
    /// asked to, and where other bytes may come of the same key. Whatever else does not agree is a difference.
    pub(super) fn of(store: &Store, catalog: &Catalog, run: &str, node: &NodeRun) -> Option<Self> {
        let key = node.key?;
        let result = catalog.result(&key).filter(|result| may_differ(result))?;
        let other = |(port, output): &(&String, &OutputRecord)| result.outputs.get(*port) != Some(*output);
        let owned = |(port, output): (&String, &OutputRecord)| (port.clone(), output.clone());
        let outputs: Vec<_> = node.outputs.iter().filter(other).map(owned).collect();
        if outputs.is_empty() {
            return None;
        }
        let later = |id: &String| id.as_str() > run && *id <= result.run;
        let made_it = |id: &String| store.run_nodes(id).iter().any(|made| made_now(id, made, result));
        let by = store.run_ids().into_iter().rev().filter(later).find(made_it)?;
        Some(Self { name: node.node.clone(), key, by, outputs })
    }

    /// Did the result give that artifact, which no record names any more?
    pub(super) fn gave(&self, id: &ArtifactId) -> bool {
        self.outputs.iter().any(|(_, output)| output.id == *id)
    }

    /// Is it what that line of a ledger says of a node?
    pub(super) fn is_of(&self, node: &NodeRun) -> bool {
        let agrees = |(port, output): &(String, OutputRecord)| node.outputs.get(port) == Some(output);
        node.key == Some(self.key) && node.node == self.name && self.outputs.iter().all(agrees)
    }

    /// Notes, once a result, that it could not be looked at.
    pub(super) fn note(&self, report: &mut Report) {
        if report.replaced.insert(self.key, self.by.clone()).is_none() {
            let why = format!("replaced by run {}: only its files were compared", self.by);
            let place = Some(format!("key {}", self.key.0.short()));
            report.find(Severity::Note, "record", &self.name, place, why.as_str());
            report.miss(format!("result of {}", self.name), why);
        }
    }
}

/// May the same key give other bytes another time? A server is asked, or a kind of processor decides.
fn may_differ(result: &NodeResult) -> bool {
    let computed = result.origin.as_ref().and_then(|origin| origin.computed.as_ref());
    computed.is_none_or(|computed| computed.repeats != Repeatability::Everywhere)
}

/// Did this node of a run make the result that is recorded now, because it was asked again? Of a run that was killed right
/// after it had recorded the result, the ledger does not say what it made.
fn made_now(run: &str, made: &NodeRun, result: &NodeResult) -> bool {
    let asked = |reason: &Reason| {
        use Reason::{CacheOff, ForceUnfinished, Forced, RejectsRetried};
        matches!(reason, Forced | CacheOff | ForceUnfinished | RejectsRetried { .. })
    };
    let fits = match made.outcome {
        NodeOutcome::Finished | NodeOutcome::HeldBack => made.outputs == result.outputs,
        NodeOutcome::Begun => result.run == run,
        NodeOutcome::Cached | NodeOutcome::Failed | NodeOutcome::Skipped => false,
    };
    made.key == Some(result.key) && fits && made.reasons.iter().any(asked)
}

/// What a run recorded of the nodes of its ledger, and was replaced since.
pub(super) fn of_ledger(store: &Store, catalog: &Catalog, run: Option<&str>, ledger: &[NodeRun]) -> Vec<Replaced> {
    let Some(run) = run else { return Vec::new() };
    ledger.iter().filter_map(|node| Replaced::of(store, catalog, run, node)).collect()
}

/// The replaced results behind those inputs of a step that no record says the maker of: the run that made the step knew
/// them.
pub(super) fn behind(store: &Store, catalog: &Catalog, step: &Step) -> Vec<Replaced> {
    let missing: Vec<ArtifactId> =
        step.inputs.iter().filter(|input| input.maker.is_none()).map(|input| input.id).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let run = &step.result.run;
    let gave = |node: &NodeRun| node.outputs.values().any(|output| missing.contains(&output.id));
    let nodes = store.run_nodes(run).into_iter().filter(gave);
    nodes.filter_map(|node| Replaced::of(store, catalog, run, &node)).collect()
}
