//! From when on remembered rows and answers count for a node: `--force` asks all of it again, and what that bought stands
//! from then on, also where it was cut off. The machines that share a store share its floors.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::call_cache::CallCache;
use super::error::StoreError;
use super::layout::Store;
use super::memo::Memo;
use super::remote::Pending;
use crate::fingerprint::{Digest, NodeKey};

/// Of the rows that share one base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// Records with an earlier stamp do not count.
    pub since: u64,
    /// The forced run has not finished the node: the next one goes on from there.
    pub open: bool,
    /// Keys that were forced, each with the floor of its last forced run.
    #[serde(default)]
    forced: BTreeMap<NodeKey, u64>,
}

impl Floor {
    /// The floor on which a result of that key must stand to count ([`super::NodeResult::since`]): that of the last forced
    /// run of the key. 0 where it was never forced: a forced run replaces the result of its own input and no other one.
    #[must_use]
    pub fn wanted(&self, key: &NodeKey) -> u64 {
        self.forced.get(key).copied().unwrap_or_default()
    }

    /// What two machines know, as one: the later floor, closed once one of them has closed it.
    pub(super) fn joined(mut self, other: Self) -> Self {
        self.open = match self.since.cmp(&other.since) {
            Ordering::Less => other.open,
            Ordering::Equal => self.open && other.open,
            Ordering::Greater => self.open,
        };
        self.since = self.since.max(other.since);
        for (key, since) in other.forced {
            let known = self.forced.entry(key).or_default();
            *known = since.max(*known);
        }
        self
    }
}

impl Store {
    fn floor_path(&self, base: &Digest) -> PathBuf {
        self.memo_folder(base).join("floor.json")
    }

    /// From when on the rows of a base count. A shared store is asked once; see [`Store::forget_floor`].
    ///
    /// # Errors
    /// Fails if the file or the shared store's object cannot be read, or the shared store cannot be reached.
    pub fn floor(&self, base: &Digest) -> Result<Floor, StoreError> {
        let Some(there) = self.fetch_floor(base)? else { return self.floor_here(base) };
        let _alone = self.lock_floors();
        self.join_floor(base, there)
    }

    pub(super) fn floor_here(&self, base: &Digest) -> Result<Floor, StoreError> {
        let path = self.floor_path(base);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Floor::default()),
            Err(error) => return Err(StoreError::io("read", &path)(error)),
        };
        serde_json::from_slice(&text).map_err(|error| {
            let path = path.display();
            StoreError::Location(format!("{path} is damaged ({error}): remove it to use answers of before `--force`"))
        })
    }

    /// Adds what the shared store says to what is known here.
    fn join_floor(&self, base: &Digest, there: Floor) -> Result<Floor, StoreError> {
        let here = self.floor_here(base)?;
        let floor = here.clone().joined(there);
        if floor != here
            && let Err(error) = self.write_floor(base, &floor)
        {
            tracing::warn!("what another machine has forced could not be kept: {error}");
        }
        Ok(floor)
    }

    /// What is known now does not count any more for the result of `key`, nor do the answers in `calls` of before this
    /// run, which began at `started`; `true` where an earlier forced run was cut off, whose answers still count.
    ///
    /// # Errors
    /// When the memo cannot be read, the file not be written, or the shared store not be reached.
    pub fn raise_floor(
        &self,
        base: &Digest,
        key: &NodeKey,
        calls: Option<&CallCache>,
        started: u64,
    ) -> Result<bool, StoreError> {
        let _alone = self.lock_floors();
        self.forget_floor(base);
        let mut floor = match self.fetch_floor(base)? {
            Some(there) => self.join_floor(base, there)?,
            None => self.floor_here(base)?,
        };
        // Killed after it had recorded its result and before it closed the floor, the forced run has finished all the same.
        let finished = || self.result(key).is_some_and(|result| result.since() >= floor.since);
        let goes_on = floor.open && !finished();
        if !goes_on {
            // Later than any of them, also where the clock was set back.
            let known = Memo::open(self, base)?.newest().max(calls.map_or(Ok(0), CallCache::newest_before)?);
            let since = started.max(known.saturating_add(1)).max(floor.since.saturating_add(1));
            floor = Floor { since, open: true, ..floor };
        }
        if floor.forced.insert(*key, floor.since) != Some(floor.since) {
            self.set_floor(base, floor)?;
        }
        Ok(goes_on)
    }

    /// A result that stands on the floor of that height was recorded, by whatever run: the next forced run begins anew.
    ///
    /// # Errors
    /// When the file cannot be written, or the shared store not be reached.
    pub fn close_floor(&self, base: &Digest, since: u64) -> Result<(), StoreError> {
        let stands = |floor: &Floor| floor.open && floor.since == since;
        if !stands(&self.floor_here(base)?) {
            return Ok(());
        }
        let _alone = self.lock_floors();
        let floor = self.floor_here(base)?;
        if stands(&floor) { self.set_floor(base, Floor { open: false, ..floor }) } else { Ok(()) }
    }

    fn set_floor(&self, base: &Digest, floor: Floor) -> Result<(), StoreError> {
        let pending = Pending::Floor(*base);
        self.note_pending(&pending)?;
        self.write_floor(base, &floor)?;
        self.send_floor(base, floor)?;
        self.forget_pending(&pending);
        Ok(())
    }

    fn write_floor(&self, base: &Digest, floor: &Floor) -> Result<(), StoreError> {
        let text = serde_json::to_vec(floor).map_err(|error| StoreError::Location(error.to_string()))?;
        self.write_file(&self.floor_path(base), &text)
    }

    /// Held while a floor is changed, so that no change of another process is lost. Where the file system has no locks,
    /// one may be.
    fn lock_floors(&self) -> Option<File> {
        let path = self.root().join("leases").join("floors");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let locked = file.and_then(|file| file.lock().map(|()| file));
        locked.inspect_err(|error| tracing::debug!("no lock on {}: {error}", path.display())).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fingerprint::{RowKey, hash_bytes};

    fn key(name: &str) -> NodeKey {
        NodeKey(hash_bytes(name.as_bytes()))
    }

    fn store() -> (tempfile::TempDir, Store, Digest) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        (folder, store, hash_bytes(b"base"))
    }

    /// Records a result that stands on the floor of now, as a run does.
    fn record(store: &Store, base: &Digest, name: &str) {
        let since = store.floor(base).unwrap().since;
        let text = json!({
            "key": key(name), "preimage": {}, "outputs": {}, "seconds": 0.0, "finished": 1.0, "run": name,
            "searchmill": "", "floor": since,
        });
        store.record(&serde_json::from_value(text).unwrap()).unwrap();
        store.close_floor(base, since).unwrap();
    }

    #[test]
    fn whoever_finishes_the_node_closes_the_floor() {
        let (_folder, store, base) = store();
        assert!(!store.raise_floor(&base, &key("a"), None, 1000).unwrap(), "nothing was cut off");
        assert!(store.raise_floor(&base, &key("a"), None, 2000).unwrap(), "killed, and forced again");
        assert_eq!(store.floor(&base).unwrap().since, 1000);
        // A plain run after the labels were changed.
        record(&store, &base, "b");
        assert!(!store.floor(&base).unwrap().open);
        assert!(!store.raise_floor(&base, &key("b"), None, 3000).unwrap(), "the next forced run begins anew");
        let floor = store.floor(&base).unwrap();
        assert_eq!((floor.since, floor.wanted(&key("a")), floor.wanted(&key("b"))), (3000, 1000, 3000));
        assert_eq!(floor.wanted(&key("c")), 0, "what was never forced counts as it is");
        // A run that computed on the floor before this one closes nothing.
        store.close_floor(&base, 1000).unwrap();
        assert!(store.floor(&base).unwrap().open);
    }

    #[test]
    fn a_forced_run_that_had_recorded_its_result_was_not_cut_off() {
        let (_folder, store, base) = store();
        store.raise_floor(&base, &key("a"), None, 1000).unwrap();
        let open = store.floor(&base).unwrap();
        record(&store, &base, "a");
        // Killed between the record and the end.
        store.set_floor(&base, open).unwrap();
        assert!(!store.raise_floor(&base, &key("a"), None, 2000).unwrap());
        assert_eq!(store.floor(&base).unwrap().since, 2000);
    }

    #[test]
    fn a_floor_is_later_than_all_that_is_known() {
        let (_folder, store, base) = store();
        let mut memo = Memo::empty(&store, &base).since(5000);
        memo.keep(&RowKey(hash_bytes(b"row")), b"payload").unwrap();
        let known = Memo::open(&store, &base).unwrap();
        assert_eq!((known.len(), known.is_empty()), (1, false));
        store.raise_floor(&base, &key("a"), None, 10).unwrap();
        let first = store.floor(&base).unwrap().since;
        let known = known.since(first);
        assert_eq!((known.len(), known.is_empty()), (0, true), "what does not count is not counted");
        record(&store, &base, "a");
        store.raise_floor(&base, &key("a"), None, 10).unwrap();
        assert!(store.floor(&base).unwrap().since > first, "also where the clock was set back");
    }

    #[test]
    fn floors_of_two_machines_are_joined() {
        let floor = |since, open, forced: &[(&str, u64)]| Floor {
            since,
            open,
            forced: forced.iter().map(|(name, since)| (key(name), *since)).collect(),
        };
        let (one, other) = (floor(7, true, &[("a", 7), ("b", 3)]), floor(9, false, &[("b", 9)]));
        let both = floor(9, false, &[("a", 7), ("b", 9)]);
        assert_eq!(one.clone().joined(other.clone()), both);
        assert_eq!(other.joined(one), both);
        let closed = floor(7, true, &[]).joined(floor(7, false, &[]));
        assert_eq!(closed, floor(7, false, &[]), "one of them has finished");
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Floor>(&text).unwrap(), both);
        assert_eq!(serde_json::from_str::<Floor>(r#"{"since":9,"open":false}"#).unwrap(), floor(9, false, &[]));
    }
}
