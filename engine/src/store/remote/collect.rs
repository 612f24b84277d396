//! Garbage collection of a shared store, from any of its machines.
//!
//! No machine sees who else uses the store, so a collection has two steps. First, a result's record moves to
//! `collected/`. A later collection removes the files of its artifacts, once the record has been there for the
//! requested age and nothing else refers to them. A machine that had looked the result up has had that time to read the
//! files; a machine that comes later recomputes it.
//!
//! A collection notes what it removes under `gc/`. Other machines then remove it from their copies when they open the
//! store. Ages are measured by the server's clock.

use std::collections::{BTreeMap, BTreeSet};

use object_store::path::Path;

use super::objects::{self, Listed};
use super::pending::Pending;
use super::records::object_path;
use super::segments::prefix;
use super::shared_folder::sweep_unfinished;
use super::{Remote, RemoteLease};
use crate::fingerprint::{Digest, NodeKey, hash_bytes};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::StoreError;
use crate::store::files::remove;
use crate::store::gc::collect::{ALIVE, GRACE, Garbage, KeepPolicy, StoredArtifact, Swept, collection, sorted_out};
use crate::store::gc::retained::Stock;
use crate::store::layout::Store;
use crate::store::lease::Others;
use crate::store::lease::heartbeat::Watch;
use crate::store::paths::{artifact_place, recorded_key};
use crate::store::records::checksum::{sealed_json, sealed_line};
use crate::store::records::results::RecordState;
use crate::store::records::tombstones::Collection;

/// Folder of the notes on collections.
const NOTES: &str = "gc";

/// The objects of one artifact or memo.
#[derive(Default)]
struct Lot {
    bytes: u64,
    newest: f64,
}

/// Groups objects below `ab/<digest>/…` by digest.
fn lots(listed: &[Listed]) -> BTreeMap<Digest, Lot> {
    let mut lots: BTreeMap<Digest, Lot> = BTreeMap::new();
    for object in listed {
        if let Some(digest) = object.name.split('/').nth(1).and_then(Digest::parse) {
            let lot = lots.entry(digest).or_default();
            lot.bytes += object.bytes;
            lot.newest = lot.newest.max(object.modified);
        }
    }
    lots
}

impl Remote {
    fn listed(&self, prefix: &str) -> Result<Vec<Listed>, StoreError> {
        self.call("list", objects::list(&self.objects, &Path::from(prefix)))
    }

    /// Deletes all objects below the prefixes; objects named `first` before the others. Below a prefix with an object that
    /// is newer than `until`, all stay: somebody uses it again. So does everything once another machine collects.
    fn delete_below(
        &self,
        lease: &RemoteLease,
        prefixes: impl Iterator<Item = Path>,
        first: &str,
        until: f64,
    ) -> Result<(), StoreError> {
        let deletions = prefixes.map(async |prefix| {
            // Listed again, right before it is removed: much time may have passed since the inventory.
            let mut found = objects::list(&self.objects, &prefix).await?;
            if lease.is_lost() || found.iter().any(|object| object.modified > until) {
                return Ok(());
            }
            found.sort_by_key(|object| object.name != first);
            for object in found {
                objects::delete(&self.objects, &object.path).await?;
            }
            Ok(())
        });
        self.call("remove from", objects::all(deletions))?;
        Ok(())
    }
}

impl Store {
    /// Determines what a collection of the shared store would remove, by this machine's clock.
    pub(in crate::store) fn shared_garbage(&self, policy: &KeepPolicy, now: f64) -> Result<Garbage, StoreError> {
        let Some(remote) = &self.remote else { return Ok(Garbage::default()) };
        self.garbage_at(remote, policy, now, now)
    }

    fn garbage_at(&self, remote: &Remote, policy: &KeepPolicy, now: f64, server: f64) -> Result<Garbage, StoreError> {
        self.fetch_records()?;
        let artifact_lots = lots(&remote.listed("artifacts")?);
        let memo_lots = lots(&remote.listed("memo")?);
        // When records were moved to `collected/`.
        let mut collected: BTreeMap<NodeKey, f64> = BTreeMap::new();
        for object in remote.listed("collected")? {
            if let Some(key) = object.path.filename().and_then(recorded_key) {
                collected.insert(key, object.modified);
            }
        }
        let age = policy.age.max(GRACE).as_secs_f64();
        let stock = Stock::read(self, policy.runs, now - age, now - ALIVE)?;
        // Since when the results of an artifact have been collected.
        let mut gone: BTreeMap<ArtifactId, f64> = BTreeMap::new();
        for result in stock.makers.gone() {
            let since = collected.get(&result.key).copied().unwrap_or(f64::INFINITY);
            for output in result.outputs.values() {
                let latest = gone.entry(output.id).or_insert(since);
                *latest = latest.max(since);
            }
        }
        let mut artifacts = Vec::with_capacity(artifact_lots.len());
        for (digest, lot) in &artifact_lots {
            let id = ArtifactId::from(*digest);
            let gone = gone.get(&id).copied().unwrap_or(f64::NEG_INFINITY);
            let idle = !stock.roots.known.contains(&id) && lot.newest.max(gone) <= server - age;
            artifacts.push(StoredArtifact { id, bytes: lot.bytes, idle });
        }
        let mut garbage = Garbage { shared: true, ..sorted_out(&stock, artifacts) };
        if policy.memo {
            let used = stock.memos();
            for (base, lot) in &memo_lots {
                if !used.contains(base) && lot.newest <= server - age {
                    garbage.memos.push((*base, lot.bytes));
                }
            }
        }
        if policy.forget_runs {
            garbage.runs = stock.old_runs().map(|id| (id.to_owned(), 0)).collect();
        }
        if policy.release {
            garbage.released = stock.middle_rounds(self, &garbage.artifacts);
        }
        Ok(garbage)
    }

    /// Collects; one machine at a time.
    pub(in crate::store) fn collect_shared(&self, policy: &KeepPolicy, now: f64) -> Result<Swept, StoreError> {
        let Some(remote) = &self.remote else { return Ok(Swept::default()) };
        let lease = remote.try_lease(&NodeKey(hash_bytes(b"collection")), &mut Watch::default())?;
        let Some(lease) = lease else { return Err(StoreError::Collecting) };
        // Ages are those of the server's clock: the clocks of machines differ.
        let probe = Path::from(format!("leases/clock-{}", remote.machine));
        let server = remote.call("write to", objects::clock(&remote.objects, &probe))?;
        let garbage = self.garbage_at(remote, policy, now, server)?;
        if !garbage.results.is_empty() {
            let collection = collection(&garbage, policy, now);
            // Before anything goes: a collection that is killed has said what it meant to remove.
            let path = Path::from(format!("{NOTES}/{}.json", collection.id));
            remote.call("write to", objects::put(&remote.objects, &path, sealed_line(&collection)?.into()))?;
            self.note_collection(&collection)?;
        }
        for result in &garbage.results {
            let key = &result.key;
            let Ok(text) = std::fs::read(self.record_path(key, "results")) else { continue };
            remote.call("collect in", async {
                // Replaces an older tombstone too: its time decides when the files may be removed.
                objects::put(&remote.objects, &object_path(key, "collected"), text.into()).await?;
                objects::delete(&remote.objects, &object_path(key, "results")).await
            })?;
            self.entomb(key)?;
        }
        // After the records and before the files, which nobody can bring back: a machine that slept meanwhile may have
        // been taken for dead, and what it knows is old then.
        if !lease.is_ours()? {
            return Err(StoreError::CollectionLost);
        }
        let until = server - policy.age.max(GRACE).as_secs_f64();
        let artifacts = garbage.artifacts.iter().map(|(id, _)| Path::from(artifact_place(id)));
        // An artifact without its description counts as missing, whatever else remains.
        remote.delete_below(&lease, artifacts, "artifact.json", until)?;
        let memos = garbage.memos.iter().map(|(base, _)| prefix(&base.hex()));
        remote.delete_below(&lease, memos, "", until)?;
        let runs = garbage.runs.iter().map(|(id, _)| Path::from(format!("runs/{id}")));
        remote.delete_below(&lease, runs, "run.json", f64::INFINITY)?;
        sweep_unfinished(&remote.url, server);
        // From this machine's copy too, unless it is in use.
        if let Others::Nobody { _held } = self.alone()? {
            let mut removed = self.move_away(&garbage)?;
            removed.extend(self.release_all(&garbage, now)?.folders);
            for trash in &removed {
                remove(trash)?;
            }
        }
        Ok(Swept { freed: garbage.bytes(), garbage })
    }

    /// Removes from this machine's copy what other machines have collected.
    pub(super) fn fetch_collections(&self) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let known: BTreeSet<String> = self.collections().into_iter().map(|collection| collection.id).collect();
        let notes = remote.call("read the collections of", async {
            let mut found = objects::list(&remote.objects, &Path::from(NOTES)).await?;
            found.retain(|found| found.name.strip_suffix(".json").is_some_and(|id| !known.contains(id)));
            objects::get_all(&remote.objects, found.into_iter().map(|found| ((), found.path))).await
        })?;
        for text in notes.into_iter().filter_map(|((), text)| text) {
            let Some(collection) = sealed_json::<Collection>(String::from_utf8_lossy(&text).trim_end().as_bytes())
            else {
                tracing::warn!("ignoring a damaged note of a collection in the shared store");
                continue;
            };
            for key in &collection.keys {
                // A result that is newer than the collection, or not uploaded yet, was not collected.
                let older =
                    matches!(self.result_here(key), RecordState::Whole(result) if result.finished <= collection.time);
                if older && !self.is_pending(&Pending::Result(*key)) {
                    self.entomb(key)?;
                }
            }
            // Last: killed before, this machine follows the same collection again.
            self.note_collection(&collection)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path as FilePath, PathBuf};
    use std::time::Duration;

    use super::*;
    use crate::store::Memo;
    use crate::store::gc::collect::tests::{POLICY, made, now, pinned};

    const HOUR: f64 = 3600.0;

    struct Team {
        folder: tempfile::TempDir,
    }

    impl Team {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("shared")).unwrap();
            Self { folder }
        }

        fn machine(&self, name: &str) -> Store {
            let url = format!("file://{}", self.shared().display());
            Store::open_shared(&url, &self.folder.path().join(name)).unwrap()
        }

        fn shared(&self) -> PathBuf {
            self.folder.path().join("shared")
        }

        /// Makes all objects older.
        fn age(&self, by: Duration) {
            for path in files(&self.shared()) {
                let file = std::fs::File::options().append(true).open(&path).unwrap();
                let before = file.metadata().unwrap().modified().unwrap();
                file.set_modified(before - by).unwrap();
            }
        }

        fn objects(&self, below: &str) -> usize {
            files(&self.shared().join(below)).len()
        }
    }

    fn files(folder: &FilePath) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn records_go_first_and_files_when_nobody_can_be_about_to_read_them() {
        let team = Team::new();
        let (one, other) = (team.machine("one"), team.machine("other"));
        let (gone, kept) = (made(&one, "a"), made(&one, "b"));
        let artifact = gone.outputs["rows"].id;
        assert_eq!(other.result(&gone.key).map(|found| found.outputs), Some(gone.outputs.clone()));
        other.pin(&pinned(&kept)).unwrap();
        assert!(one.garbage(&POLICY, now()).unwrap().results.is_empty(), "recent results may be in use");
        let planned = one.garbage(&POLICY, now() + HOUR).unwrap();
        let swept = one.collect(&POLICY, now() + HOUR).unwrap();
        assert_eq!((planned.results.len(), planned.artifacts.len(), planned.shared), (1, 0, true));
        assert_eq!((swept.garbage.results[0].key, swept.garbage.kept_results, swept.freed), (gone.key, 1, 0));
        assert!(swept.garbage.results[0].bytes > 0 && swept.garbage.artifacts.is_empty());
        assert!(one.result(&gone.key).is_none() && one.tombstone(&gone.key).is_some());
        assert_eq!(other.fetch(&artifact).unwrap(), Ok(()), "a run that has looked it up can still read it");
        // The other machine learns of it with its next run, and its tombstone says so.
        drop(other);
        let other = team.machine("other");
        assert!(other.result(&gone.key).is_none() && other.tombstone(&gone.key).is_some());
        assert_eq!(other.collections().iter().map(|found| found.keys.clone()).collect::<Vec<_>>(), [vec![gone.key]]);
        assert!(one.collect(&POLICY, now() + HOUR).unwrap().garbage.artifacts.is_empty(), "collected just now");
        team.age(Duration::from_hours(1));
        let before = team.objects("artifacts");
        let swept = one.collect(&POLICY, now() + HOUR).unwrap();
        assert_eq!((swept.garbage.results.len(), swept.garbage.artifacts.len()), (0, 1));
        assert!(swept.freed > 0 && team.objects("artifacts") == before - 2, "a part and its description");
        let third = team.machine("third");
        assert!(third.fetch(&artifact).unwrap().is_err());
        assert_eq!(third.fetch(&kept.outputs["rows"].id).unwrap(), Ok(()));
        // Recomputed, it is an ordinary result; the old tombstone has no effect.
        made(&third, "a");
        assert!(one.result(&gone.key).is_some() && one.fetch(&artifact).unwrap().is_ok());
        assert_eq!(one.collect(&POLICY, now() + HOUR).unwrap().garbage.results.len(), 1);
        assert!(one.collect(&POLICY, now() + HOUR).unwrap().garbage.artifacts.is_empty());
        let leases = files(&team.shared().join("leases"));
        let is_probe = |path: &PathBuf| path.to_string_lossy().contains("clock-");
        assert!(!leases.is_empty() && !leases.iter().any(is_probe), "no probe of the clock stays: {leases:?}");
    }

    #[test]
    fn what_was_not_sent_yet_stays_here() {
        let team = Team::new();
        let (one, other) = (team.machine("one"), team.machine("other"));
        let gone = made(&one, "a");
        other.result(&gone.key).unwrap();
        other.note_pending(&Pending::Result(gone.key)).unwrap();
        one.collect(&POLICY, now() + HOUR).unwrap();
        other.fetch_collections().unwrap();
        assert!(matches!(other.result_here(&gone.key), RecordState::Whole(_)));
        other.send_pending().unwrap();
        assert!(one.result(&gone.key).is_some(), "sent, it is there again");
    }

    #[test]
    fn paid_rows_go_only_when_that_is_asked_for_and_old_files_of_nobody_always() {
        let team = Team::new();
        let one = team.machine("one");
        let base = hash_bytes(b"base");
        let mut memo = Memo::empty(&one, &base);
        memo.keep(&crate::fingerprint::RowKey(hash_bytes(b"row")), b"payload").unwrap();
        memo.sync().unwrap();
        let stray = team.shared().join(artifact_place(&hash_bytes(b"stray").into())).join("odd%23name.parquet");
        std::fs::create_dir_all(stray.parent().unwrap()).unwrap();
        std::fs::write(&stray, b"left behind").unwrap();
        let all = KeepPolicy { memo: true, ..POLICY };
        assert!(one.collect(&all, now()).unwrap().garbage.memos.is_empty() && stray.exists());
        team.age(Duration::from_hours(1));
        assert_eq!(one.collect(&POLICY, now()).unwrap().garbage.artifacts.len(), 1);
        assert!(!stray.exists() && team.objects("memo") == 1);
        assert_eq!(one.collect(&all, now()).unwrap().garbage.memos.len(), 1);
        assert_eq!(team.objects("memo"), 0);
    }

    #[test]
    fn one_machine_collects_at_a_time() {
        let team = Team::new();
        let (one, other) = (team.machine("one"), team.machine("other"));
        let remote = one.remote.as_ref().unwrap();
        let lease = remote.try_lease(&NodeKey(hash_bytes(b"collection")), &mut Watch::default()).unwrap();
        assert!(lease.is_some());
        let refused = other.collect(&POLICY, now()).unwrap_err().to_string();
        assert!(refused.contains("another machine is collecting"), "{refused}");
        drop(lease);
        other.collect(&POLICY, now()).unwrap();
    }
}
