//! Catalog of all results of a store: by key, by output and by input.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::instant::rfc3339;
use crate::fingerprint::{NodeKey, Preimage};
use crate::node_id::NodeId;
use crate::store::{ArtifactId, NodeResult, RecordState, Store};

/// A port of a result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The result.
    pub key: NodeKey,
    /// The port.
    pub port: String,
}

/// When and how a result was collected.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Collected {
    /// Unix time in seconds, if known.
    pub time: Option<f64>,
    /// The collection, if known.
    pub by: Option<String>,
}

impl std::fmt::Display for Collected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.time, &self.by) {
            (Some(time), Some(by)) => write!(f, "collected on {} by `{by}`", &rfc3339(time)[..10]),
            _ => write!(f, "collected by `searchmill gc`"),
        }
    }
}

/// All results of a store, read once.
#[derive(Debug, Default)]
pub struct Catalog {
    results: BTreeMap<NodeKey, NodeResult>,
    collected: BTreeMap<NodeKey, Collected>,
    damaged: BTreeMap<NodeKey, Option<NodeResult>>,
    makers: BTreeMap<ArtifactId, Vec<Port>>,
    claims: BTreeMap<ArtifactId, Port>,
    users: BTreeMap<ArtifactId, Vec<Port>>,
    names: BTreeMap<NodeKey, NodeId>,
}

impl Catalog {
    /// Reads all results, and the names of their nodes from the ledger.
    pub fn read(store: &Store) -> Self {
        let mut catalog = Self::default();
        for key in store.keys_below("results") {
            match store.result_state(&key) {
                RecordState::Whole(result) => catalog.add(*result),
                RecordState::Damaged(claim) => {
                    for (port, output) in claim.iter().flat_map(|claim| &claim.outputs) {
                        catalog.claims.entry(output.id).or_insert_with(|| Port { key, port: port.clone() });
                    }
                    catalog.damaged.insert(key, claim.map(|claim| *claim));
                }
                RecordState::Missing => {}
            }
        }
        // Of a collected result, only the files are missing.
        let collections = store.collections();
        for key in store.keys_below("collected") {
            if catalog.results.contains_key(&key) || catalog.damaged.contains_key(&key) {
                continue;
            }
            let Some(result) = store.tombstone(&key) else { continue };
            // A result may have been computed and collected again: the last collection has its files.
            let collected = match collections.iter().rfind(|collection| collection.keys.contains(&key)) {
                Some(collection) => Collected { time: Some(collection.time), by: Some(collection.id.clone()) },
                None => Collected::default(),
            };
            catalog.collected.insert(key, collected);
            catalog.add(result);
        }
        catalog.name(store);
        catalog
    }

    /// Returns when and by which collection a result was collected, if it was.
    pub fn collected(&self, key: &NodeKey) -> Option<&Collected> {
        self.collected.get(key)
    }

    fn add(&mut self, result: NodeResult) {
        let key = result.key;
        for (port, output) in &result.outputs {
            self.makers.entry(output.id).or_default().push(Port { key, port: port.clone() });
        }
        for input in Preimage::read(&result.preimage).inputs {
            self.users.entry(input.digest.into()).or_default().push(Port { key, port: input.port });
        }
        self.results.insert(key, result);
    }

    /// Names nodes as in the newest run; without a ledger entry, as recorded with the result.
    fn name(&mut self, store: &Store) {
        let mut missing: BTreeSet<NodeKey> = self.results.keys().chain(self.damaged.keys()).copied().collect();
        for run in &store.newest_runs() {
            if missing.is_empty() {
                return;
            }
            for node in store.run_nodes(run) {
                if let Some(key) = node.key
                    && missing.remove(&key)
                {
                    self.names.insert(key, node.node);
                }
            }
        }
        for key in missing {
            let origin = self.claim(&key).and_then(|result| result.origin.as_ref());
            if let Some(node) = origin.map(|origin| origin.node.clone()) {
                self.names.insert(key, node);
            }
        }
    }

    /// Returns a result whose record is intact.
    pub fn result(&self, key: &NodeKey) -> Option<&NodeResult> {
        self.results.get(key)
    }

    /// Returns a result, or the content of a damaged record.
    pub fn claim(&self, key: &NodeKey) -> Option<&NodeResult> {
        self.results.get(key).or_else(|| self.damaged.get(key)?.as_ref())
    }

    /// Returns all results with intact records, by key.
    pub fn results(&self) -> impl Iterator<Item = &NodeResult> {
        self.results.values()
    }

    /// Returns the keys of damaged records, with their readable content.
    pub fn damaged(&self) -> impl Iterator<Item = (&NodeKey, Option<&NodeResult>)> {
        self.damaged.iter().map(|(key, claim)| (key, claim.as_ref()))
    }

    /// Whether the record of this key is damaged.
    pub fn is_damaged(&self, key: &NodeKey) -> bool {
        self.damaged.contains_key(key)
    }

    /// Returns the ports that produced an artifact, by key. Equal bytes may have several makers.
    pub fn makers(&self, id: &ArtifactId) -> &[Port] {
        self.makers.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns the ports that used an artifact, by key.
    pub fn users(&self, id: &ArtifactId) -> &[Port] {
        self.users.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns all artifacts that results produced, sorted by id.
    pub fn artifacts(&self) -> impl Iterator<Item = &ArtifactId> {
        self.makers.keys()
    }

    /// Returns the name of a key's node.
    pub fn node(&self, key: &NodeKey) -> Option<&str> {
        self.names.get(key).map(NodeId::as_str)
    }

    /// Returns the maker of an artifact that `user` used, or that is requested by itself.
    ///
    /// Equal bytes may have several makers, and a node that changes nothing produces its own input. Among the results
    /// finished when the user started, the newest one of `preferred` (the keys of a run) is chosen, else the newest
    /// one. If the times do not allow any, one that did not use the artifact itself. If no intact record names it, a
    /// damaged one that does.
    pub fn maker(&self, id: &ArtifactId, preferred: &BTreeSet<NodeKey>, user: Option<&NodeResult>) -> Option<&Port> {
        // Times are rounded in records.
        let started = user.map_or(f64::INFINITY, |user| user.finished - user.seconds + 0.001);
        // A node that changes nothing made its own input too, and did not read it from itself.
        let mut others: Vec<&Port> = self.makers(id).iter().collect();
        others.retain(|port| user.is_none_or(|user| user.key != port.key));
        let mut candidates = others.clone();
        candidates.retain(|port| self.finished(port) <= started);
        // Clocks of machines differ: the times of all makers may be wrong.
        if candidates.is_empty() {
            candidates.clone_from(&others);
            candidates.retain(|port| !self.users(id).iter().any(|user| user.key == port.key));
        }
        if candidates.is_empty() {
            candidates = others;
        }
        let newest = candidates.into_iter().max_by(|one, other| {
            let preference = preferred.contains(&one.key).cmp(&preferred.contains(&other.key));
            preference.then_with(|| self.finished(one).total_cmp(&self.finished(other)))
        });
        newest.or_else(|| self.claims.get(id))
    }

    fn finished(&self, port: &Port) -> f64 {
        self.results.get(&port.key).map_or(0.0, |result| result.finished)
    }
}
