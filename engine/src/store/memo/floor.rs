//! Floors: the stamp from which cached rows and answers count for a node.
//!
//! `--force` raises a node's floor, so that everything is computed again. What the forced run bought counts from then
//! on, even if the run was interrupted. Machines that share a store share its floors.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Memo;
use super::call_cache::CallCache;
use crate::fingerprint::{Digest, NodeKey};
use crate::store::error::{FloorFault, IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::records::checksum::{Seal, look, seal};
use crate::store::remote::Pending;

/// The floor of rows with the same base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// Records with an earlier stamp do not count.
    pub since: u64,
    /// Whether a forced run has not finished the node. The next forced run then resumes from there.
    pub open: bool,
    /// Forced keys, each with the floor of its last forced run.
    #[serde(default)]
    forced: BTreeMap<NodeKey, u64>,
}

impl Floor {
    /// Returns the minimum floor of a valid result of that key ([`super::NodeResult::since`]): the floor of the key's
    /// last forced run, or 0 if it was never forced. A forced run replaces only the result of its own input.
    pub fn wanted(&self, key: &NodeKey) -> u64 {
        self.forced.get(key).copied().unwrap_or_default()
    }

    fn is_open_at(&self, since: u64) -> bool {
        self.open && self.since == since
    }

    /// Joins the floors of two machines: the later floor, closed if either machine has closed it.
    pub(crate) fn joined(mut self, other: Self) -> Self {
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

/// Reads a floor.
///
/// # Errors
/// What is wrong with the file or object.
pub(crate) fn read_floor(text: &[u8]) -> Result<Floor, FloorFault> {
    if look(&String::from_utf8_lossy(text)) == Seal::Broken {
        return Err(FloorFault::Checksum);
    }
    serde_json::from_slice(text).map_err(FloorFault::Json)
}

impl Store {
    fn floor_path(&self, base: &Digest) -> PathBuf {
        self.memo_folder(base).join("floor.json")
    }

    /// Returns the floor of a base. A shared store is queried once; see [`Store::forget_floor`].
    ///
    /// # Errors
    /// Fails if the file or the shared store's object cannot be read, or the shared store cannot be reached.
    pub fn floor(&self, base: &Digest) -> Result<Floor, StoreError> {
        let Some(there) = self.fetch_floor(base)? else { return self.floor_here(base) };
        // Held from the read to the write: another process may raise the floor in between.
        let _alone = self.lock_floors();
        self.join_floor(base, there)
    }

    pub(crate) fn floor_here(&self, base: &Digest) -> Result<Floor, StoreError> {
        let path = self.floor_path(base);
        let Some(text) = if_there(fs::read(&path)).context("read", &path)? else { return Ok(Floor::default()) };
        read_floor(&text).map_err(|fault| StoreError::Floor(path, fault))
    }

    /// Joins the shared store's floor with the local one.
    fn join_floor(&self, base: &Digest, there: Floor) -> Result<Floor, StoreError> {
        let here = self.floor_here(base)?;
        let floor = here.clone().joined(there);
        if floor != here
            && let Err(error) = self.write_floor(base, &floor)
        {
            tracing::warn!("cannot store another machine's floor: {error}");
        }
        Ok(floor)
    }

    /// Raises the floor: neither the cached result of `key` nor answers in `kept` from before this run count any more.
    /// The run began at `now`. Returns `true` if an earlier forced run was interrupted; its answers still count.
    ///
    /// # Errors
    /// Fails if the memo cannot be read, the file cannot be written, or the shared store cannot be reached.
    pub fn raise_floor(&self, base: &Digest, key: &NodeKey, kept: &[&CallCache], now: u64) -> Result<bool, StoreError> {
        let _alone = self.lock_floors();
        // Asked again: another machine may have raised it since it was fetched.
        self.forget_floor(base);
        let mut floor = match self.fetch_floor(base)? {
            Some(there) => self.join_floor(base, there)?,
            None => self.floor_here(base)?,
        };
        let mut resumes = floor.open;
        if resumes && let Some(result) = self.result(key) {
            // If a forced run was killed between recording its result and closing the floor, it has still finished.
            resumes = result.since() < floor.since || result.unasked != 0;
        }
        if !resumes {
            // Later than every known stamp, even if the clock was set back.
            let mut known = Memo::open(self, base)?.newest();
            for calls in kept {
                known = known.max(calls.newest_before()?);
            }
            let since = now.max(known.saturating_add(1)).max(floor.since.saturating_add(1));
            floor = Floor { since, open: true, ..floor };
        }
        if floor.forced.insert(*key, floor.since) != Some(floor.since) {
            self.set_floor(base, floor)?;
        }
        Ok(resumes)
    }

    /// Closes a floor after any run recorded a result that stands on it: the next forced run starts over.
    ///
    /// # Errors
    /// Fails if the file cannot be written or the shared store cannot be reached.
    pub fn close_floor(&self, base: &Digest, since: u64) -> Result<(), StoreError> {
        // Looked at without the lock first: few runs are forced, and every node that asks rows ends here.
        if !self.floor_here(base)?.is_open_at(since) {
            return Ok(());
        }
        let _alone = self.lock_floors();
        let floor = self.floor_here(base)?;
        if floor.is_open_at(since) { self.set_floor(base, Floor { open: false, ..floor }) } else { Ok(()) }
    }

    fn set_floor(&self, base: &Digest, floor: Floor) -> Result<(), StoreError> {
        let pending = Pending::Floor(*base);
        // Noted before it is written here, forgotten once it is there: killed in between, the next run sends it.
        self.note_pending(&pending)?;
        self.write_floor(base, &floor)?;
        self.send_floor(base, floor)?;
        self.forget_pending(&pending);
        Ok(())
    }

    fn write_floor(&self, base: &Digest, floor: &Floor) -> Result<(), StoreError> {
        self.write_file(&self.floor_path(base), &seal(serde_json::to_vec(floor)?))
    }

    /// Locks floors while one changes, so that no update of another process is lost. Without file locks, one can be.
    fn lock_floors(&self) -> Option<File> {
        let path = self.root().join("leases").join("floors");
        let locked = nofollow::open_or_create(&path).and_then(|file| file.lock().map(|()| file));
        locked.inspect_err(|error| tracing::debug!("cannot lock {}: {error}", path.display())).ok()
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

    /// Records a result that stands on the current floor, like a run.
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
        assert!(!store.raise_floor(&base, &key("a"), &[], 1000).unwrap(), "nothing was cut off");
        assert!(store.raise_floor(&base, &key("a"), &[], 2000).unwrap(), "killed, and forced again");
        assert_eq!(store.floor(&base).unwrap().since, 1000);
        // A plain run after the labels changed.
        record(&store, &base, "b");
        assert!(!store.floor(&base).unwrap().open);
        assert!(!store.raise_floor(&base, &key("b"), &[], 3000).unwrap(), "the next forced run begins anew");
        let floor = store.floor(&base).unwrap();
        assert_eq!((floor.since, floor.wanted(&key("a")), floor.wanted(&key("b"))), (3000, 1000, 3000));
        assert_eq!(floor.wanted(&key("c")), 0, "what was never forced counts as it is");
        // A run that computed on an earlier floor closes nothing.
        store.close_floor(&base, 1000).unwrap();
        assert!(store.floor(&base).unwrap().open);
    }

    #[test]
    fn a_forced_run_that_had_recorded_its_result_was_not_cut_off() {
        let (_folder, store, base) = store();
        store.raise_floor(&base, &key("a"), &[], 1000).unwrap();
        let open = store.floor(&base).unwrap();
        record(&store, &base, "a");
        // Killed between recording the result and the end.
        store.set_floor(&base, open).unwrap();
        assert!(!store.raise_floor(&base, &key("a"), &[], 2000).unwrap());
        assert_eq!(store.floor(&base).unwrap().since, 2000);
    }

    #[test]
    fn a_floor_is_later_than_all_that_is_known() {
        let (_folder, store, base) = store();
        let mut memo = Memo::empty(&store, &base).since(5000);
        memo.keep(&RowKey(hash_bytes(b"row")), b"payload").unwrap();
        let known = Memo::open(&store, &base).unwrap();
        assert_eq!((known.len(), known.is_empty()), (1, false));
        store.raise_floor(&base, &key("a"), &[], 10).unwrap();
        let first = store.floor(&base).unwrap().since;
        let known = known.since(first);
        assert_eq!((known.len(), known.is_empty()), (0, true), "rows below the floor are not counted");
        record(&store, &base, "a");
        store.raise_floor(&base, &key("a"), &[], 10).unwrap();
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
