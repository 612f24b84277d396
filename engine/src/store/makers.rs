//! Maps artifacts to the results that produced them and to their inputs, from all records, tombstones included.

use std::collections::{BTreeMap, BTreeSet};

use super::artifact::ArtifactId;
use super::layout::Store;
use super::manifest::NodeResult;
use crate::fingerprint::{NodeKey, Preimage};

/// All results of a store, by key and by output.
#[derive(Debug, Default)]
pub struct Makers {
    results: BTreeMap<NodeKey, NodeResult>,
    collected: BTreeSet<NodeKey>,
    by_artifact: BTreeMap<ArtifactId, Vec<NodeKey>>,
}

impl Makers {
    /// Reads a store. Damaged records are skipped.
    pub fn read(store: &Store) -> Self {
        let mut makers = Self::default();
        store.keys_below("results").iter().filter_map(|key| store.result(key)).for_each(|result| makers.add(result));
        for key in store.keys_below("collected") {
            if !makers.results.contains_key(&key)
                && let Some(result) = store.tombstone(&key)
            {
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
    pub fn is_collected(&self, key: &NodeKey) -> bool {
        self.collected.contains(key)
    }

    /// Returns the results that produced an artifact: those among `preferred` if any, else the newest one, with results
    /// before tombstones.
    pub fn of(&self, artifact: &ArtifactId, preferred: &BTreeSet<NodeKey>) -> Vec<NodeKey> {
        let makers = self.by_artifact.get(artifact).map(Vec::as_slice).unwrap_or_default();
        let chosen: Vec<NodeKey> = makers.iter().filter(|key| preferred.contains(key)).copied().collect();
        if !chosen.is_empty() {
            return chosen;
        }
        let newest = makers.iter().max_by(|one, other| {
            let live = (!self.is_collected(one)).cmp(&!self.is_collected(other));
            live.then(self.results[*one].finished.total_cmp(&self.results[*other].finished)).then(one.cmp(other))
        });
        newest.copied().into_iter().collect()
    }

    /// Returns `start` and the keys of all results that their inputs derive from, back to the sources.
    pub fn ancestry(
        &self,
        start: impl IntoIterator<Item = NodeKey>,
        preferred: &BTreeSet<NodeKey>,
    ) -> BTreeSet<NodeKey> {
        let mut pending: Vec<NodeKey> = start.into_iter().collect();
        let mut found: BTreeSet<NodeKey> = pending.iter().copied().collect();
        while let Some(result) = pending.pop().map(|key| self.results.get(&key)) {
            let inputs = result.map(|result| Preimage::read(&result.preimage).inputs).unwrap_or_default();
            let makers = inputs.iter().flat_map(|input| self.of(&input.digest.into(), preferred));
            pending.extend(makers.filter(|key| found.insert(*key)));
        }
        found
    }
}
