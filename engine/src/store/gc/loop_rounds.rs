//! Finds the folders of middle rounds that a collection may release: models, states and indexes that later rounds have
//! used and that can be made again here.
//!
//! A round is known by the id of its node in the newest run that has it: `step@round=7`. Its folders are released if a
//! later round of the node has a result, if some result uses them, and if all nodes of their pipeline have results or
//! were left out at the end of a loop, so that no node is about to need them. What a newest run ends with stays. So does the
//! round that rows chose to hand on, which the record of the deciding node names, and what a pin protects.

use std::collections::{BTreeMap, BTreeSet};

use super::producers::input_artifacts;
use super::retained::Stock;
use crate::node_id::{NodeId, Round};
use crate::store::artifacts::artifact::{ArtifactId, ArtifactType};
use crate::store::layout::Store;
use crate::store::records::runs::{NodeOutcome, NodeRun};

/// A folder of a middle round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Middle {
    /// Its pipeline.
    pub pipeline: String,
    /// The node that made it.
    pub node: NodeId,
    /// The artifact.
    pub artifact: ArtifactId,
    /// Its size.
    pub bytes: u64,
}

/// The nodes of a pipeline, each as in the newest run that has its node, whatever round or variant.
#[derive(Default)]
struct Latest<'s> {
    nodes: Vec<&'s NodeRun>,
    known: BTreeSet<&'s str>,
}

impl Stock {
    /// Returns the folders of middle rounds that can be released, without those in `going`.
    pub(crate) fn middle_rounds(&self, store: &Store, going: &[(ArtifactId, u64)]) -> Vec<Middle> {
        let mut found: BTreeMap<ArtifactId, Middle> = BTreeMap::new();
        let mut stays: BTreeSet<ArtifactId> = going.iter().map(|(id, _)| *id).collect();
        for (pipeline, latest) in self.latest() {
            let mut is_complete = true;
            let mut handed_on: BTreeSet<&NodeId> = BTreeSet::new();
            let mut used: BTreeSet<ArtifactId> = BTreeSet::new();
            let mut last_rounds: BTreeMap<String, Round> = BTreeMap::new();
            for node in &latest.nodes {
                handed_on.extend(&node.hands_on);
                let result = node.key.and_then(|key| self.makers.result(&key));
                if let Some(result) = result {
                    used.extend(input_artifacts(result));
                }
                // A round after the end of its loop did not run: it is not the last one, and needs no result.
                if node.outcome == NodeOutcome::Ended {
                    continue;
                }
                is_complete &= node.outcome.has_result() && result.is_some();
                if let Some(round) = node.node.round() {
                    let last = last_rounds.entry(node.node.without_round()).or_default();
                    *last = round.max(*last);
                }
            }
            for node in &latest.nodes {
                let last = last_rounds.get(&node.node.without_round());
                let is_middle = node.node.round().is_some_and(|round| last.is_some_and(|last| round < *last));
                let result = node.key.and_then(|key| self.makers.result(&key));
                let is_made_again =
                    result.is_some_and(|result| !self.makers.is_collected(&result.key) && result.is_made_again_here());
                let may_go = is_complete && is_middle && is_made_again && !handed_on.contains(&node.node);
                for output in node.outputs.values() {
                    let ArtifactType::Tree { .. } = output.artifact_type else { continue };
                    let artifact = output.id;
                    if may_go && used.contains(&artifact) {
                        let (pipeline, node) = (pipeline.to_owned(), node.node.clone());
                        found.insert(artifact, Middle { pipeline, node, artifact, bytes: output.bytes });
                    } else {
                        stays.insert(artifact);
                    }
                }
            }
        }
        // Only now: what one pipeline may release, another one may need.
        found.retain(|id, _| !stays.contains(id) && store.is_here(id));
        if !found.is_empty() {
            let pinned = store.pinned_artifacts(&self.pins);
            found.retain(|id, _| !pinned.contains(id));
        }
        // This machine's copy goes only if the shared store has the artifact whole.
        if let Some(remote) = &store.remote {
            found.retain(|id, _| remote.check(id).is_ok());
        }
        found.into_values().collect()
    }

    fn latest(&self) -> BTreeMap<&str, Latest<'_>> {
        let mut pipelines: BTreeMap<&str, Latest<'_>> = BTreeMap::new();
        for run in &self.history.runs {
            let (Some(record), false) = (&run.record, run.imported) else { continue };
            let latest = pipelines.entry(&record.pipeline).or_default();
            let mut last: BTreeMap<&str, &NodeRun> = BTreeMap::new();
            for node in run.nodes.iter().filter(|node| !latest.known.contains(node.node.name())) {
                // Of a node that began and ended, the end counts.
                last.insert(&node.node, node);
            }
            latest.known.extend(last.values().map(|node| node.node.name()));
            latest.nodes.extend(last.into_values());
        }
        pipelines
    }
}
