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
        let makers = self.by_artifact.get(artifact).map(Vec::as_slice).unwrap_or_default();
        // Times are rounded in records.
        let began = user.map_or(f64::INFINITY, |user| user.finished - user.seconds + 0.001);
        let is_other = |key: &NodeKey| user.is_none_or(|user| user.key != *key);
        let is_live = |key: &NodeKey| is_other(key) && !self.is_collected(key);
        let before = |key: &NodeKey| self.results[key].finished <= began;
        let takes = |key: &NodeKey| self.inputs(key).contains(artifact);
        let pools: [&dyn Fn(&NodeKey) -> bool; 5] = [
            &|key| is_live(key) && before(key),
            &|key| is_live(key) && !takes(key),
            &|key| is_other(key) && before(key),
            &|key| is_other(key) && !takes(key),
            &is_other,
        ];
        let pools = pools.iter().map(|fits| makers.iter().copied().filter(|key| fits(key)).collect::<Vec<_>>());
        let pool = pools.into_iter().find(|pool| !pool.is_empty()).unwrap_or_default();
        let chosen: Vec<NodeKey> = pool.iter().filter(|key| preferred.contains(key)).copied().collect();
        if !chosen.is_empty() {
            return chosen;
        }
        let finished = |key: &NodeKey| self.results[key].finished;
        let newest = pool.iter().max_by(|one, other| finished(one).total_cmp(&finished(other)).then(one.cmp(other)));
        newest.copied().into_iter().collect()
    }

    fn inputs(&self, key: &NodeKey) -> Vec<ArtifactId> {
        let inputs = self.results.get(key).map(|result| Preimage::read(&result.preimage).inputs).unwrap_or_default();
        inputs.into_iter().map(|input| input.digest.into()).collect()
    }

    /// Returns `start` and the keys of all results that their inputs derive from, back to the sources.
    pub fn ancestry(
        &self,
        start: impl IntoIterator<Item = NodeKey>,
        preferred: &BTreeSet<NodeKey>,
    ) -> BTreeSet<NodeKey> {
        let mut pending: Vec<NodeKey> = start.into_iter().collect();
        let mut found: BTreeSet<NodeKey> = pending.iter().copied().collect();
        while let Some(key) = pending.pop() {
            let user = self.results.get(&key);
            let makers = self.inputs(&key).into_iter().flat_map(|input| self.of(&input, preferred, user));
            pending.extend(makers.filter(|key| found.insert(*key)));
        }
        found
    }
}
