//! Maps artifacts to the results that produced them and to their inputs, from all records, tombstones included.

use std::collections::{BTreeMap, BTreeSet};

use super::artifact::ArtifactId;
use super::layout::Store;
use super::manifest::NodeResult;
use crate::fingerprint::{Digest, NodeKey};

/// All results of a store, by key and by output.
#[derive(Debug, Default)]
pub struct Makers {
    results: BTreeMap<NodeKey, NodeResult>,
    collected: BTreeSet<NodeKey>,
    by_artifact: BTreeMap<ArtifactId, Vec<NodeKey>>,
}

impl Makers {
    /// Reads a store. Damaged records are skipped.
    #[must_use]
    pub fn read(store: &Store) -> Self {
        let mut makers = Self::default();
        for key in store.keys_below("results") {
            if let Some(result) = store.result(&key) {
                makers.add(result);
            }
        }
        for key in store.keys_below("collected") {
            if makers.results.contains_key(&key) {
                continue;
            }
            if let Some(result) = store.tombstone(&key) {
                makers.collected.insert(key);
                makers.add(result);
            }
        }
        makers
    }

    fn add(&mut self, result: NodeResult) {
        for output in result.outputs.values() {
            self.by_artifact.entry(output.id).or_default().push(result.key);
        }
        self.results.insert(result.key, result);
    }

    /// Returns a result or a tombstone.
    #[must_use]
    pub fn result(&self, key: &NodeKey) -> Option<&NodeResult> {
        self.results.get(key)
    }

    /// Returns results that are not collected.
    pub fn live(&self) -> impl Iterator<Item = &NodeResult> {
        self.results.values().filter(|result| !self.is_collected(&result.key))
    }

    /// Returns tombstones.
    pub(super) fn gone(&self) -> impl Iterator<Item = &NodeResult> {
        self.collected.iter().filter_map(|key| self.results.get(key))
    }

    /// Whether the result was collected.
    #[must_use]
    pub fn is_collected(&self, key: &NodeKey) -> bool {
        self.collected.contains(key)
    }

    /// Returns the results that produced an artifact: those among `preferred` if any, else the newest one, with results
    /// before tombstones.
    #[must_use]
    pub fn of(&self, artifact: &ArtifactId, preferred: &BTreeSet<NodeKey>) -> Vec<NodeKey> {
        let Some(makers) = self.by_artifact.get(artifact) else { return Vec::new() };
        let chosen: Vec<NodeKey> = makers.iter().filter(|key| preferred.contains(key)).copied().collect();
        if !chosen.is_empty() {
            return chosen;
        }
        let rank = |key: &&NodeKey| (!self.is_collected(key), self.results[*key].finished);
        let newest = makers.iter().max_by(|one, other| {
            let ((live, time), (other_live, other_time)) = (rank(one), rank(other));
            live.cmp(&other_live).then(time.total_cmp(&other_time)).then(one.cmp(other))
        });
        newest.copied().into_iter().collect()
    }

    /// Returns `start` and the keys of all results that their inputs derive from, back to the sources.
    #[must_use]
    pub fn ancestry(
        &self,
        start: impl IntoIterator<Item = NodeKey>,
        preferred: &BTreeSet<NodeKey>,
    ) -> BTreeSet<NodeKey> {
        let mut pending: Vec<NodeKey> = start.into_iter().collect();
        let mut found: BTreeSet<NodeKey> = pending.iter().copied().collect();
        while let Some(result) = pending.pop().map(|key| self.results.get(&key)) {
            let inputs = result.map(inputs).unwrap_or_default();
            let makers = inputs.iter().flat_map(|input| self.of(input, preferred));
            pending.extend(makers.filter(|key| found.insert(*key)));
        }
        found
    }
}

/// Returns the input artifacts of a result.
fn inputs(result: &NodeResult) -> Vec<ArtifactId> {
    let rows = result.preimage["inputs"].as_array().into_iter().flatten();
    rows.filter_map(|row| row[2].as_str().and_then(Digest::parse).map(ArtifactId::from)).collect()
}
