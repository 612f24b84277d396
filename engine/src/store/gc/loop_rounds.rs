//! Finds the folders of middle rounds that a collection may release: models, states and indexes that later rounds have
//! used and that can be made again here.
//!
//! A round is known by the id of its node in the newest run that has it: `step@round=7`. Its folders are released if a
//! later round of the node has a result, if some result uses them, and if all nodes of their pipeline have results or
//! were left out at the end of a loop, so that no node is about to need them. What a newest run ends with stays. So does the
//! round that rows chose to hand on, which the record of the deciding node names, and what a pin protects.

use std::collections::{BTreeMap, BTreeSet};

use super::retained::Stock;
use crate::fingerprint::Preimage;
use crate::node_id::{NodeId, Round};
use crate::store::artifacts::artifact::{ArtifactId, ArtifactType};
use crate::store::layout::Store;
use crate::store::records::node_result::{NodeResult, OutputRecord};
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
            self.sort_out(pipeline, &latest.nodes, &mut found, &mut stays);
        }
        found.retain(|id, _| !stays.contains(id) && store.is_here(id));
        if !found.is_empty() {
            let pinned = store.pinned_artifacts(&self.pins);
            found.retain(|id, _| !pinned.contains(id));
        }
        if let Some(remote) = &store.remote {
            found.retain(|id, _| remote.check(id).is_ok());
        }
        found.into_values().collect()
    }

    fn latest(&self) -> BTreeMap<&str, Latest<'_>> {
        let mut pipelines: BTreeMap<&str, Latest<'_>> = BTreeMap::new();
        for run in self.ledger.runs.iter().filter(|run| !run.imported) {
            let Some(record) = &run.record else { continue };
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

    /// Adds the folders of a pipeline that may be released, and those that stay.
    fn sort_out(
        &self,
        pipeline: &str,
        nodes: &[&NodeRun],
        found: &mut BTreeMap<ArtifactId, Middle>,
        stays: &mut BTreeSet<ArtifactId>,
    ) {
        let trees = |node: &NodeRun| {
            let is_tree = |output: &&OutputRecord| matches!(output.artifact_type, ArtifactType::Tree { .. });
            node.outputs.values().filter(is_tree).map(|output| (output.id, output.bytes)).collect::<Vec<_>>()
        };
        let results: Vec<Option<&NodeResult>> = nodes.iter().map(|node| self.makers.result(&node.key?)).collect();
        let is_settled = |node: &NodeRun, has_result: bool| match node.outcome {
            NodeOutcome::Ended => true,
            outcome => outcome.has_result() && has_result,
        };
        let is_complete = nodes.iter().zip(&results).all(|(node, result)| is_settled(node, result.is_some()));
        let handed_on: BTreeSet<&NodeId> = nodes.iter().flat_map(|node| &node.hands_on).collect();
        let used: BTreeSet<ArtifactId> = results
            .iter()
            .flatten()
            .flat_map(|result| Preimage::read(&result.preimage).inputs)
            .map(|input| input.digest.into())
            .collect();
        let mut ends: BTreeMap<String, Round> = BTreeMap::new();
        for node in nodes.iter().filter(|node| node.outcome != NodeOutcome::Ended) {
            if let Some(round) = node.node.round() {
                let end = ends.entry(node.node.without_round()).or_default();
                *end = round.max(*end);
            }
        }
        for (node, result) in nodes.iter().zip(results) {
            let end = ends.get(&node.node.without_round());
            let is_middle =
                node.node.round().zip(end).is_some_and(|(round, end)| round < *end) && !handed_on.contains(&node.node);
            let again =
                result.is_some_and(|result| !self.makers.is_collected(&result.key) && result.is_made_again_here());
            for (artifact, bytes) in trees(node) {
                if is_complete && is_middle && again && used.contains(&artifact) {
                    let (pipeline, node) = (pipeline.to_owned(), node.node.clone());
                    found.insert(artifact, Middle { pipeline, node, artifact, bytes });
                } else {
                    stays.insert(artifact);
                }
            }
        }
    }
}
