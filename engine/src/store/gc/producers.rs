//! Maps artifacts to the results that produced them and to their inputs, from all records, tombstones included.

use std::collections::{BTreeMap, BTreeSet};

use crate::fingerprint::{NodeKey, Preimage};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::layout::Store;
use crate::store::records::node_result::NodeResult;

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
        for key in store.keys_below("results") {
            if let Some(result) = store.result(&key) {
                makers.add(result);
            }
        }
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
    pub(crate) fn gone(&self) -> impl Iterator<Item = &NodeResult> {
        self.collected.iter().filter_map(|key| self.results.get(key))
    }

    /// Whether the result was collected.
    pub fn is_collected(&self, key: &NodeKey) -> bool {
        self.collected.contains(key)
    }

    /// Returns the results that produced an artifact that `user` used, or that is meant by itself: those among
    /// `preferred` if any, else the newest one.
    ///
    /// A node that changes nothing produces its own input. So only results that finished before the user began count,
    /// and if the times allow none, those that did not use the artifact themselves. Results come before tombstones.
    pub fn of(&self, artifact: &ArtifactId, preferred: &BTreeSet<NodeKey>, user: Option<&NodeResult>) -> Vec<NodeKey> {
        // Times are rounded in records.
        let began = user.map_or(f64::INFINITY, |user| user.finished - user.seconds + 0.001);
        // The makers of the best rank: 0 is the best.
        let (mut best, mut pool): (u8, Vec<NodeKey>) = (u8::MAX, Vec::new());
        for key in self.by_artifact.get(artifact).into_iter().flatten() {
            if user.is_some_and(|user| user.key == *key) {
                continue;
            }
            let is_before = self.results[key].finished <= began;
            let rank = match (self.is_collected(key), is_before) {
                (false, true) => 0,
                (false, false) if !self.inputs(key).contains(artifact) => 1,
                (true, true) => 2,
                (true, false) if !self.inputs(key).contains(artifact) => 3,
                (_, false) => 4,
            };
            if rank < best {
                best = rank;
                pool.clear();
            }
            if rank == best {
                pool.push(*key);
            }
        }
        let chosen: Vec<NodeKey> = pool.iter().filter(|key| preferred.contains(key)).copied().collect();
        if !chosen.is_empty() {
            return chosen;
        }
        // Of results that finished together, the one with the largest key: the answer must not vary.
        pool.sort_by(|one, other| {
            self.results[one].finished.total_cmp(&self.results[other].finished).then(one.cmp(other))
        });
        pool.last().copied().into_iter().collect()
    }

    /// Returns the result of that key, or else those that produced the artifact.
    pub fn chosen(&self, key: Option<NodeKey>, id: &ArtifactId, preferred: &BTreeSet<NodeKey>) -> Vec<NodeKey> {
        key.map_or_else(|| self.of(id, preferred, None), |key| vec![key])
    }

    fn inputs(&self, key: &NodeKey) -> Vec<ArtifactId> {
        self.results.get(key).map(input_artifacts).unwrap_or_default()
    }

    /// Returns `start` and the keys of all results that their inputs derive from, back to the sources.
    pub fn ancestry(&self, start: &[NodeKey], preferred: &BTreeSet<NodeKey>) -> BTreeSet<NodeKey> {
        let mut pending = start.to_vec();
        let mut found: BTreeSet<NodeKey> = start.iter().copied().collect();
        while let Some(key) = pending.pop() {
            let user = self.results.get(&key);
            for input in self.inputs(&key) {
                let mut makers = self.of(&input, preferred, user);
                makers.retain(|key| found.insert(*key));
                pending.extend(makers);
            }
        }
        found
    }
}

/// Returns the artifacts that a result was computed from.
pub(super) fn input_artifacts(result: &NodeResult) -> Vec<ArtifactId> {
    Preimage::read(&result.preimage).inputs.into_iter().map(|input| input.digest.into()).collect()
}
