//! Floors of a shared store: stamps from which cached rows count, for all machines.

use bytes::Bytes;
use object_store::path::Path;

use super::objects::{self, Put, Reply};
use super::segments::prefix;
use crate::fingerprint::Digest;
use crate::store::error::StoreError;
use crate::store::layout::Store;
use crate::store::memo::floor::{Floor, read_floor};
use crate::store::records::checksum::seal;

/// Attempts to update a floor that other machines change at the same time.
const TRIES: usize = 20;

fn object_path(base: &Digest) -> Path {
    prefix(&base.hex()).join("floor.json")
}

fn read(text: &[u8], path: &Path) -> Reply<Floor> {
    read_floor(text).map_err(|fault| objects::generic(format!("{path} {fault} (with `{path}.next`, if there is one)")))
}

impl Store {
    /// Returns the floor in the shared store. Each floor is fetched once: later calls return `None`.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached or its floor is damaged; the next call fetches it again.
    pub(in crate::store) fn fetch_floor(&self, base: &Digest) -> Result<Option<Floor>, StoreError> {
        let Some(remote) = &self.remote else { return Ok(None) };
        if remote.learnt().floors.contains(base) {
            return Ok(None);
        }
        let path = object_path(base);
        let floor = remote.call("read from", async {
            objects::get(&remote.objects, &path).await?.map(|(text, _)| read(&text, &path)).transpose()
        })?;
        remote.learnt().floors.insert(*base);
        Ok(floor)
    }

    /// Forgets that a floor was fetched: another machine may have changed it.
    pub fn forget_floor(&self, base: &Digest) {
        if let Some(remote) = &self.remote {
            remote.learnt().floors.remove(base);
        }
    }

    /// Joins a floor with the one in the shared store.
    pub(in crate::store) fn send_floor(&self, base: &Digest, floor: Floor) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let (objects, path) = (&remote.objects, object_path(base));
        remote.call("write to", async {
            for _ in 0..TRIES {
                let there = objects::get(objects, &path).await?;
                let known = there.as_ref().map(|(text, _)| read(text, &path)).transpose()?.unwrap_or_default();
                let text = serde_json::to_vec(&floor.clone().joined(known));
                let text = Bytes::from(seal(text.map_err(|error| objects::generic(error.to_string()))?));
                let sent = text.clone();
                // Only if it is still what was joined: no machine's floor is lost.
                let version = there.map(|(_, version)| version);
                match objects::put_if(objects, &path, text, version).await? {
                    Put::Made(_) => return Ok(()),
                    // The answer to an earlier attempt was lost: it is there.
                    Put::Refused(Some((found, _))) if found == sent => return Ok(()),
                    Put::Refused(_) => {}
                }
            }
            Err(objects::generic("other machines keep changing the same floor"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path as FilePath;

    use serde_json::json;

    use super::*;
    use crate::fingerprint::{NodeKey, hash_bytes};
    use crate::store::NodeResult;

    fn machine(folder: &FilePath, name: &str) -> Store {
        std::fs::create_dir_all(folder.join("shared")).unwrap();
        Store::open_shared(&format!("file://{}", folder.join("shared").display()), &folder.join(name)).unwrap()
    }

    fn key() -> NodeKey {
        NodeKey(hash_bytes(b"key"))
    }

    #[test]
    fn a_floor_is_that_of_all_machines() {
        let (folder, base) = (tempfile::tempdir().unwrap(), hash_bytes(b"base"));
        let (one, other) = (machine(folder.path(), "one"), machine(folder.path(), "other"));
        let seen = |store: &Store| {
            store.forget_floor(&base);
            let floor = store.floor(&base).unwrap();
            (floor.since, floor.open, floor.wanted(&key()))
        };
        assert_eq!(seen(&other), (0, false, 0));
        assert!(!one.raise_floor(&base, &key(), &[], 1000).unwrap());
        assert_eq!(other.floor(&base).unwrap().since, 0, "it was asked a moment ago");
        assert_eq!(seen(&other), (1000, true, 1000));
        assert!(other.raise_floor(&base, &key(), &[], 2000).unwrap(), "it goes on from what the first one did");
        other.close_floor(&base, 1000).unwrap();
        assert!(!one.raise_floor(&base, &key(), &[], 3000).unwrap(), "the other one has finished it");
        // A copy that is used alone; its floor is sent once it is connected again.
        drop(other);
        let alone = Store::open(&folder.path().join("other")).unwrap();
        assert!(!alone.raise_floor(&base, &key(), &[], 5000).unwrap());
        drop(alone);
        assert_eq!(seen(&one), (3000, true, 3000));
        drop(machine(folder.path(), "other"));
        assert_eq!(seen(&one), (5000, true, 5000));
        assert_eq!(seen(&machine(folder.path(), "third")), (5000, true, 5000));
    }

    #[test]
    fn a_damaged_floor_is_an_error_each_time_it_is_read() {
        let (folder, base) = (tempfile::tempdir().unwrap(), hash_bytes(b"base"));
        let (one, other) = (machine(folder.path(), "one"), machine(folder.path(), "other"));
        one.raise_floor(&base, &key(), &[], 1000).unwrap();
        let object = folder.path().join("shared").join(object_path(&base).as_ref());
        std::fs::write(&object, "{").unwrap();
        for _ in 0..2 {
            let error = other.floor(&base).unwrap_err().to_string();
            assert!(error.contains("floor.json is damaged") && error.contains("remove it"), "{error}");
        }
        assert!(other.raise_floor(&base, &key(), &[], 2000).is_err());
        std::fs::remove_file(&object).unwrap();
        assert_eq!(other.floor(&base).unwrap().since, 0);
    }

    fn result(run: &str, floor: Option<u64>) -> NodeResult {
        let record = json!({
            "key": key(), "preimage": {}, "outputs": {}, "seconds": 0.0, "finished": 1.0, "run": run, "searchmill": "",
            "floor": floor,
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn of_two_records_the_one_on_the_later_floor_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (machine(folder.path(), "one"), machine(folder.path(), "other"));
        let run_of = |store: &Store| store.result(&key()).map(|result| result.run);
        one.record(&result("first", None)).unwrap();
        assert_eq!(run_of(&other).as_deref(), Some("first"));
        one.record_anew(&result("forced", Some(1000))).unwrap();
        assert_eq!(run_of(&other).as_deref(), Some("first"), "what is here is not asked for");
        assert!(other.fetch_record(&key(), "results", 2000).is_none());
        assert_eq!(run_of(&other).as_deref(), Some("first"));
        assert_eq!(other.fetch_record(&key(), "results", 1000).map(|result| result.run).as_deref(), Some("forced"));
        assert_eq!(run_of(&other).as_deref(), Some("forced"));
        // A result computed before and sent later does not replace it; one on a later floor does.
        other.record(&result("late", None)).unwrap();
        assert_eq!(run_of(&machine(folder.path(), "third")).as_deref(), Some("forced"));
        other.record(&result("finished", Some(2000))).unwrap();
        assert_eq!(run_of(&machine(folder.path(), "fourth")).as_deref(), Some("finished"));
    }
}
