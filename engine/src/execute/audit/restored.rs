//! Released artifacts that a replay has made again: kept aside while later steps need them.

use std::collections::{BTreeMap, BTreeSet};

use crate::lineage::{Closure, Report, Step};
use crate::operator::InputArtifact;
use crate::store::{ArtifactId, Store, StoreError};

/// Released artifacts that are here again.
pub(super) struct Restored {
    /// The inputs of later steps that are one of the released artifacts.
    users: BTreeMap<ArtifactId, usize>,
    here: BTreeSet<ArtifactId>,
    /// Holds them; removed at the end.
    aside: Option<Store>,
}

impl Restored {
    pub(crate) fn of(closure: &Closure, report: &Report) -> Self {
        let mut users = BTreeMap::new();
        for input in closure.steps.iter().flat_map(|step| &step.inputs) {
            // What lies in the store needs no second copy.
            if report.released.contains_key(&input.id) {
                *users.entry(input.id).or_default() += 1;
            }
        }
        Self { users, here: BTreeSet::new(), aside: None }
    }

    /// Takes what a step gave again out of its scratch store.
    pub(crate) fn retain(&mut self, store: &Store, scratch: &Store, id: &ArtifactId) -> Result<(), StoreError> {
        if self.users.contains_key(id) && self.here.insert(*id) {
            let aside = match &mut self.aside {
                Some(aside) => aside,
                empty => empty.insert(store.scratch()?),
            };
            aside.take_over(scratch, id)?;
        }
        Ok(())
    }

    /// Opens an artifact of the store, or one that is here again.
    pub(crate) fn open(&self, store: &Store, id: &ArtifactId) -> Result<InputArtifact, StoreError> {
        match &self.aside {
            Some(aside) if self.here.contains(id) => aside.open_input(id),
            _ => store.open_input(id),
        }
    }

    /// Removes what no later step uses.
    pub(crate) fn used(&mut self, step: &Step) -> Result<(), StoreError> {
        for input in &step.inputs {
            let Some(users) = self.users.get_mut(&input.id) else { continue };
            *users -= 1;
            if *users == 0 {
                self.users.remove(&input.id);
                if self.here.remove(&input.id)
                    && let Some(aside) = &self.aside
                {
                    aside.discard(&input.id)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn remove(self) -> Result<(), StoreError> {
        self.aside.map_or(Ok(()), Store::remove)
    }
}
