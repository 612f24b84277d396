//! Imports results from elsewhere: unpacks them under `tmp/`, checks them, and only then moves them into place.
//!
//! Nothing in the store is ever changed by an import.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::artifacts::artifact::{Artifact, ArtifactId};
use super::artifacts::description::{IN_FOLDER, is_in_folder, read_description};
use super::error::StoreError;
use super::files::clear;
use super::gc::release::Release;
use super::layout::Store;
use super::lease::StoreUse;
use super::memo::segment::{record, scan_bytes};
use super::memo::{Memo, now, segment_keys};
use super::nofollow;
use super::paths::{artifact_place, description_place, memo_place, record_place, release_place};
use super::records::checksum::{Seal, look};
use super::records::node_result::NodeResult;
use super::records::results::read_record;
use super::records::runs::{IMPORTED, NodeRun, RunRecord};
use super::remote::Pending;
use crate::fingerprint::{Digest, NodeKey, RowKey, hash_bytes, hash_file};

/// Outcome of importing one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Added to the store.
    New,
    /// Already in the store.
    Known,
    /// The store has a different object of that name, which stays.
    Different,
}

/// An import in progress. Dropping it removes unfinished work.
#[derive(Debug)]
pub struct Intake {
    store: Store,
    folder: PathBuf,
    _in_use: StoreUse,
}

impl Store {
    /// Begins an import.
    ///
    /// # Errors
    /// Fails if the store cannot be written.
    pub fn intake(&self) -> Result<Intake, StoreError> {
        let in_use = self.enter()?;
        let folder = self.temporary();
        nofollow::create_folder(&folder).map_err(StoreError::io("create", &folder))?;
        Ok(Intake { store: self.clone(), folder, _in_use: in_use })
    }

    /// Opens a file under `tmp/` and unlinks it: it is gone once it is closed.
    ///
    /// # Errors
    /// Fails if it cannot be created or read.
    pub fn nameless(&self, path: &Path) -> Result<File, StoreError> {
        let file = File::open(path).map_err(StoreError::io("open", path))?;
        nofollow::remove_file(path).map_err(StoreError::io("remove", path))?;
        Ok(file)
    }
}

impl Intake {
    /// Returns the temporary path of a store path. The path must be valid in a store.
    fn path(&self, place: &str) -> PathBuf {
        self.folder.join(place)
    }

    /// Writes a file's content, at most `bytes` of it. Returns its digest and length.
    ///
    /// # Errors
    /// Fails if it cannot be read or written.
    pub fn add(&self, place: &str, content: &mut dyn Read, bytes: u64) -> Result<(Digest, u64), StoreError> {
        let path = self.path(place);
        let parent = path.parent().unwrap_or(&self.folder);
        nofollow::create_folder(parent).map_err(StoreError::io("create", parent))?;
        let mut file = nofollow::create_new(&path).map_err(StoreError::io("create", &path))?;
        let taken = std::io::copy(&mut content.take(bytes), &mut file).map_err(StoreError::io("write", &path))?;
        file.sync_data().map_err(StoreError::io("flush", &path))?;
        let digest = hash_file(&path).map_err(StoreError::io("read", &path))?;
        Ok((digest, taken))
    }

    /// Whether the artifact is complete and consists of exactly these files with known digests.
    pub fn holds_artifact(&self, id: &ArtifactId, files: &[(String, Digest)]) -> bool {
        let folder = self.path(&artifact_place(id));
        let Some(artifact) = self.description(id) else { return false };
        let told: BTreeSet<(&String, Digest)> = files.iter().map(|(name, digest)| (name, *digest)).collect();
        let named: BTreeSet<(&String, Digest)> = artifact.parts.iter().map(|part| (&part.name, part.digest)).collect();
        let size = |name: &str| fs::metadata(folder.join(name)).map(|metadata| metadata.len()).ok();
        artifact.id() == *id
            && told == named
            && artifact.parts.len() == named.len()
            && artifact.parts.iter().all(|part| size(&part.name) == Some(part.bytes))
    }

    /// Returns the description of an unpacked artifact. Archives of earlier versions have it among the files.
    fn description(&self, id: &ArtifactId) -> Option<Artifact> {
        let inside = self.path(&artifact_place(id)).join(IN_FOLDER);
        read_description(&self.path(&description_place(id)), id).or_else(|| read_description(&inside, id))
    }

    /// Returns the record of a key if it is intact and its preimage hashes to the key.
    pub fn result(&self, key: &NodeKey, folder: &str) -> Option<NodeResult> {
        let text = fs::read(self.path(&record_place(key, folder))).ok()?;
        let told = |result: &NodeResult| result.key == *key && NodeKey::of(&result.preimage) == *key;
        read_record(&text).filter(told)
    }

    /// Returns the record of a run if all of its files are intact.
    pub fn run(&self, id: &str) -> Option<RunRecord> {
        let folder = self.path("runs").join(id);
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let record = serde_json::from_str::<RunRecord>(&text("run.json")).ok()?;
        let events = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        let sealed = |name: &str| text(name).lines().all(|line| look(line) != Seal::Broken);
        let whole = record.id == id
            && look(&text("run.json")) != Seal::Broken
            && sealed("nodes.jsonl")
            && sealed("events.jsonl")
            && text("nodes.jsonl").lines().all(|line| serde_json::from_str::<NodeRun>(line).is_ok())
            && text("events.jsonl").lines().all(events);
        whole.then_some(record)
    }

    /// Returns the note of a release if its description is that of the artifact.
    pub fn release(&self, id: &ArtifactId) -> Option<Release> {
        let text = fs::read(self.path(&release_place(id))).ok()?;
        serde_json::from_slice(&text).ok().filter(|note: &Release| note.artifact.id() == *id)
    }

    /// Returns the number of rows of a segment if every byte is intact.
    pub fn memo_rows(&self, base: &Digest, segment: &Digest) -> Option<usize> {
        let bytes = fs::read(self.path(&memo_place(base, segment))).ok()?;
        segment_keys(&bytes).map(|keys| keys.len())
    }

    /// Moves a checked artifact into the store. Replaces a damaged one of that name.
    ///
    /// # Errors
    /// Fails if it cannot be moved.
    pub fn admit_artifact(&self, id: &ArtifactId) -> Result<Admission, StoreError> {
        if self.store.check(id).is_ok() {
            return Ok(Admission::Known);
        }
        self.store.note_pending(&Pending::Artifact(*id))?;
        self.store.discard(id)?;
        let folder = self.path(&artifact_place(id));
        let Some(artifact) = self.description(id) else { return Err(StoreError::Undescribed(*id)) };
        if is_in_folder(&folder) && !artifact.parts.iter().any(|part| part.name == IN_FOLDER) {
            let path = folder.join(IN_FOLDER);
            nofollow::remove_file(&path).map_err(StoreError::io("remove", &path))?;
        }
        // An artifact without parts has no folder.
        nofollow::create_folder(&folder).map_err(StoreError::io("create", &folder))?;
        self.store.install(id, &artifact, &folder)?;
        self.store.forget_release(id);
        Ok(Admission::New)
    }

    /// Adds the note of a release, unless the artifact is here. Returns whether it was added.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn admit_release(&self, id: &ArtifactId, note: &Release) -> Result<bool, StoreError> {
        self.store.note_release(id, note)
    }

    /// Moves a checked record into the store.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn admit_result(&self, result: &NodeResult, folder: &str) -> Result<Admission, StoreError> {
        if let Some(known) = self.store.result(&result.key) {
            let same = known.outputs == result.outputs;
            return Ok(if same { Admission::Known } else { Admission::Different });
        }
        let place = record_place(&result.key, folder);
        let target = self.store.root().join(&place);
        if folder == "collected" && target.exists() {
            return Ok(Admission::Known);
        }
        self.store.note_pending(&match folder {
            "collected" => Pending::Tombstone(result.key),
            _ => Pending::Result(result.key),
        })?;
        self.store.publish(&self.path(&place), &target)?;
        Ok(Admission::New)
    }

    /// Adds the rows of a checked segment to the memo. Cached rows stay, as this store has paid for them. Returns the
    /// number of added rows.
    ///
    /// # Errors
    /// Fails if the memo cannot be read or written.
    pub fn admit_memo(&self, base: &Digest, segment: &Digest) -> Result<usize, StoreError> {
        let path = self.path(&memo_place(base, segment));
        let bytes = fs::read(&path).map_err(StoreError::io("read", &path))?;
        let (known, time) = (Memo::open(&self.store, base)?, now());
        let (mut new, mut records) = (BTreeSet::new(), Ok(Vec::new()));
        scan_bytes(&bytes, |found| {
            if let Ok(all) = &mut records
                && !known.contains(&RowKey(found.key))
            {
                new.insert(found.key);
                // A stamp from the future would shadow all answers paid for here later.
                match record(found.stamp.min(time), &found.key, found.payload) {
                    Ok(one) => all.extend(one),
                    Err(error) => records = Err(error),
                }
            }
        });
        let records = records?;
        if !new.is_empty() {
            let place = memo_place(base, &hash_bytes(&records));
            self.store.write_file(&self.store.root().join(place), &records)?;
        }
        Ok(new.len())
    }

    /// Moves the checked record of a run into the store and marks it as imported.
    ///
    /// # Errors
    /// Fails if it cannot be moved.
    pub fn admit_run(&self, id: &str) -> Result<Admission, StoreError> {
        let target = self.store.run_folder(id);
        if target.exists() {
            return Ok(Admission::Known);
        }
        let folder = self.path("runs").join(id);
        let mark = folder.join(IMPORTED);
        nofollow::write(&mark, "").map_err(StoreError::io("write", &mark))?;
        self.store.note_pending(&Pending::Run(id.to_owned()))?;
        self.store.publish(&folder, &target)?;
        Ok(Admission::New)
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        clear(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Usage;

    #[test]
    fn imported_rows_replace_none_that_are_here() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let base = hash_bytes(b"base");
        let (known, new) = (RowKey(hash_bytes(b"known")), RowKey(hash_bytes(b"new")));
        let answer = |text: &str| [serde_json::to_vec(&Usage::default()).unwrap(), text.into()].join(&b'\n');
        let payloads = |key: &RowKey| Memo::open(&store, &base).unwrap().payloads(key).collect::<Vec<_>>();
        let keep = |key: &RowKey, text: &str| Memo::open(&store, &base).unwrap().keep(key, &answer(text)).unwrap();
        keep(&known, "here");

        // Both answers claim the newest possible stamp.
        let theirs = [&known, &new].map(|key| record(u64::MAX, &key.0, &answer("there")).unwrap()).concat();
        let digest = hash_bytes(&theirs);
        let admit = || {
            let intake = store.intake().unwrap();
            let place = memo_place(&base, &digest);
            intake.add(&place, &mut theirs.as_slice(), u64::MAX).unwrap();
            assert_eq!(intake.memo_rows(&base, &digest), Some(2));
            intake.admit_memo(&base, &digest).unwrap()
        };
        assert_eq!((admit(), admit()), (1, 0));
        assert_eq!((payloads(&known), payloads(&new)), (vec![answer("here")], vec![answer("there")]));
        keep(&new, "later");
        assert_eq!(payloads(&new)[0], answer("later"));
    }
}
