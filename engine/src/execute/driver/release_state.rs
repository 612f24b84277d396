//! What a run may release, and what it has seen of the pins and of other processes.

use crate::plan::NodeIndex;
use std::collections::{BTreeMap, BTreeSet};

use super::release_policy::ReleasePolicy;
use crate::execute::settings::options::Settings;
use crate::plan::Plan;
use crate::store::{ArtifactId, Neighbours, NodeResult, Pin, Store, StoreError};

/// What a run may release, and what it has released.
#[derive(Default)]
pub(crate) struct ReleaseState {
    pub(super) policy: ReleasePolicy,
    /// The folders of the settled nodes, each with the nodes that gave it.
    pub(crate) folders: BTreeMap<ArtifactId, BTreeSet<NodeIndex>>,
    /// Nodes whose folders could go, but another process used the store.
    pub(crate) postponed: BTreeSet<NodeIndex>,
    pub(crate) neighbours: Neighbours,
    /// The pins that were seen, and what they protect.
    pinned: (Vec<Pin>, BTreeSet<ArtifactId>),
    /// Removals in progress.
    pub(crate) running: usize,
}

impl ReleaseState {
    /// Nothing is released by a test, or where no loop has `keep:`.
    pub(crate) fn of(plan: &Plan, settings: &Settings) -> Self {
        if settings.trial.is_some() {
            return Self::default();
        }
        Self { policy: ReleasePolicy::of(plan, &settings.chosen.asked), ..Self::default() }
    }

    /// Records that a settled node runs again.
    pub(super) fn reopen(&mut self, index: NodeIndex) {
        self.policy.reopen(index);
    }

    /// Returns what the pins protect.
    pub(crate) fn protected(&mut self, store: &Store) -> Result<&BTreeSet<ArtifactId>, StoreError> {
        // Their folders stay in the shared store.
        let pins = if store.is_shared() { Vec::new() } else { store.pins()? };
        if pins != self.pinned.0 {
            let found = store.pinned_artifacts(&pins);
            self.pinned = (pins, found);
        }
        Ok(&self.pinned.1)
    }

    /// Returns the folders of a node that can go: no other node that stays gave the same.
    pub(crate) fn going(&self, index: NodeIndex, result: &NodeResult) -> Vec<ArtifactId> {
        let id = |port: &String| result.outputs.get(port).map(|output| output.id);
        let ids = self.policy.ports(index).iter().filter_map(id);
        let is_free = |id: &ArtifactId| {
            self.folders.get(id).is_none_or(|indices| indices.iter().all(|index| self.policy.can_go(*index)))
        };
        ids.filter(is_free).collect()
    }
}
