//! Imports results from elsewhere: unpacks them under `tmp/`, checks them, and only then moves them into place.
//!
//! Nothing in the store is ever changed by an import.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::artifacts::artifact::{Artifact, ArtifactId};
use super::artifacts::description::{IN_FOLDER, is_in_folder, read_description};
use super::error::{IoContext, StoreError};
use super::files::clear;
use super::gc::release::Release;
use super::layout::Store;
use super::lease::StoreUse;
use super::memo::segment::{record, scan_bytes};
use super::memo::{Memo, now, segment_rows};
use super::nofollow;
use super::paths::{artifact_place, description_place, memo_place, record_place, release_place};
use super::records::checksum::{read_json, sealed_json};
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
        // Entered first: no collection may remove what is being moved into place.
        let in_use = self.enter()?;
        let folder = self.temporary();
        nofollow::create_folder(&folder).context("create", &folder)?;
        Ok(Intake { store: self.clone(), folder, _in_use: in_use })
    }

    /// Opens a file under `tmp/` and unlinks it: it is gone once it is closed.
    ///
    /// # Errors
    /// Fails if it cannot be created or read.
    pub fn nameless(&self, path: &Path) -> Result<File, StoreError> {
        let file = File::open(path).context("open", path)?;
        // Its content stays readable until it is closed, and even a killed process leaves nothing.
        nofollow::remove_file(path).context("remove", path)?;
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
        nofollow::create_folder(parent).context("create", parent)?;
        let mut file = nofollow::create_new(&path).context("create", &path)?;
        let taken = std::io::copy(&mut content.take(bytes), &mut file).context("write", &path)?;
        // Before anything names it: a record that is on disk must not refer to files that are not.
        file.sync_data().context("flush", &path)?;
        let digest = hash_file(&path).context("read", &path)?;
        Ok((digest, taken))
    }

    /// Whether the artifact is complete and consists of exactly these files with known digests.
    pub fn holds_artifact(&self, id: &ArtifactId, files: &[(String, Digest)]) -> bool {
        let folder = self.path(&artifact_place(id));
        let Some(artifact) = self.description(id) else { return false };
        let listed: BTreeSet<(&String, Digest)> = files.iter().map(|(name, digest)| (name, *digest)).collect();
        let named: BTreeSet<(&String, Digest)> = artifact.parts.iter().map(|part| (&part.name, part.digest)).collect();
        if artifact.id() != *id || listed != named || artifact.parts.len() != named.len() {
            return false;
        }
        let mut parts = artifact.parts.iter();
        parts.all(|part| fs::metadata(folder.join(&part.name)).is_ok_and(|metadata| metadata.len() == part.bytes))
    }

    /// Returns the description of an unpacked artifact. Archives of earlier versions have it among the files.
    fn description(&self, id: &ArtifactId) -> Option<Artifact> {
        let inside = self.path(&artifact_place(id)).join(IN_FOLDER);
        read_description(&self.path(&description_place(id)), id).or_else(|| read_description(&inside, id))
    }

    /// Returns the record of a key if it is intact and its preimage hashes to the key.
    pub fn result(&self, key: &NodeKey, folder: &str) -> Option<NodeResult> {
        let result = read_record(&fs::read(self.path(&record_place(key, folder))).ok()?)?;
        // The checksum of a forged record fits, the preimage of another key does not.
        if result.key == *key && NodeKey::of(&result.preimage) == *key { Some(result) } else { None }
    }

    /// Returns the record of a run if all of its files are intact.
    pub fn run(&self, id: &str) -> Option<RunRecord> {
        let folder = self.path("runs").join(id);
        let record: RunRecord = read_json(&folder.join("run.json"))?;
        let nodes = fs::read_to_string(folder.join("nodes.jsonl")).unwrap_or_default();
        let events = fs::read_to_string(folder.join("events.jsonl")).unwrap_or_default();
        let whole = record.id == id
            && nodes.lines().all(|line| sealed_json::<NodeRun>(line.as_bytes()).is_some())
            && events.lines().all(|line| sealed_json::<serde_json::Value>(line.as_bytes()).is_some());
        if whole { Some(record) } else { None }
    }

    /// Returns the note of a release if its description is that of the artifact.
    pub fn release(&self, id: &ArtifactId) -> Option<Release> {
        let note: Release = serde_json::from_slice(&fs::read(self.path(&release_place(id))).ok()?).ok()?;
        if note.artifact.id() == *id { Some(note) } else { None }
    }

    /// Returns the number of rows of a segment if every byte is intact.
    pub fn memo_rows(&self, base: &Digest, segment: &Digest) -> Option<usize> {
        segment_rows(&fs::read(self.path(&memo_place(base, segment))).ok()?)
    }

    /// Moves a checked artifact into the store. Replaces a damaged one of that name.
    ///
    /// # Errors
    /// Fails if it cannot be moved.
    pub fn admit_artifact(&self, id: &ArtifactId) -> Result<Admission, StoreError> {
        if self.store.check(id).is_ok() {
            return Ok(Admission::Known);
        }
        // Noted first: if this process is killed, the next one uploads what came into a shared store's copy.
        self.store.note_pending(&Pending::Artifact(*id))?;
        self.store.discard(id)?;
        let folder = self.path(&artifact_place(id));
        let Some(artifact) = self.description(id) else { return Err(StoreError::Undescribed(*id)) };
        if is_in_folder(&folder) && !artifact.parts.iter().any(|part| part.name == IN_FOLDER) {
            // A folder contains an artifact's files and nothing else: the rest would count as damage.
            let path = folder.join(IN_FOLDER);
            nofollow::remove_file(&path).context("remove", &path)?;
        }
        // An artifact without parts has no folder.
        nofollow::create_folder(&folder).context("create", &folder)?;
        self.store.install(id, &artifact, &folder)?;
        // After the files: until they are here, the note says where they come from.
        self.store.forget_release(id);
        Ok(Admission::New)
    }

    /// Adds the note of a release, unless the artifact is here. Returns whether it was added.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn admit_release(&self, id: &ArtifactId, note: &Release) -> Result<bool, StoreError> {
        let store = &self.store;
        if store.artifact_folder(id).exists() || store.release_of(id).is_some() {
            return Ok(false);
        }
        store.write_file(&store.root().join(release_place(id)), &serde_json::to_vec(note)?)?;
        Ok(true)
    }

    /// Moves a checked record into the store.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn admit_result(&self, result: &NodeResult, folder: &str) -> Result<Admission, StoreError> {
        if let Some(known) = self.store.result(&result.key) {
            return Ok(if known.outputs == result.outputs { Admission::Known } else { Admission::Different });
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
        let bytes = fs::read(&path).context("read", &path)?;
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
            // Named by its content, as merged segments are.
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
        // Marked before it is visible: an imported run must never count as the newest one.
        let mark = folder.join(IMPORTED);
        nofollow::write(&mark, "").context("write", &mark)?;
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
