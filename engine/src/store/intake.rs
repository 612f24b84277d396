//! Takes results from elsewhere in: everything is unpacked under `tmp/` and checked there, and only then put in its place.
//! What is in the store already is never changed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::artifact::{Artifact, ArtifactId};
use super::error::StoreError;
use super::layout::Store;
use super::lease::StoreUse;
use super::manifest::NodeResult;
use super::memo::{Memo, now, segment_keys};
use super::remote::Pending;
use super::results::read_record;
use super::runs::{IMPORTED, NodeRun, RunRecord};
use super::seal::{Seal, look};
use super::segment::{record, scan_bytes};
use crate::fingerprint::{Digest, NodeKey, RowKey, encode, hash_bytes, hash_file};

/// What came of taking one thing in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is in the store now.
    New,
    /// It was there before.
    Known,
    /// Something else of that name was there before, and stays.
    Different,
}

/// Work in progress. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct Intake {
    store: Store,
    folder: PathBuf,
    _in_use: StoreUse,
}

impl Store {
    /// Begins to take something in.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn intake(&self) -> Result<Intake, StoreError> {
        let in_use = self.enter()?;
        let folder = self.temporary();
        fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        Ok(Intake { store: self.clone(), folder, _in_use: in_use })
    }

    /// A file under `tmp/` that has no name any more: it is gone once it is closed.
    ///
    /// # Errors
    /// When it cannot be made or read.
    pub fn nameless(&self, path: &Path) -> Result<File, StoreError> {
        let mut file = File::open(path).map_err(StoreError::io("open", path))?;
        fs::remove_file(path).map_err(StoreError::io("remove", path))?;
        file.seek(SeekFrom::Start(0)).map_err(StoreError::io("read", path))?;
        Ok(file)
    }
}

impl Intake {
    /// Where a file with that place in the store lies for now. The place must be one of the store's own.
    fn path(&self, place: &str) -> PathBuf {
        self.folder.join(place)
    }

    /// Takes a file's content; gives its digest. More than `bytes` of it are not taken.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn add(&self, place: &str, content: &mut dyn Read, bytes: u64) -> Result<(Digest, u64), StoreError> {
        let path = self.path(place);
        let parent = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(parent).map_err(StoreError::io("create", parent))?;
        let mut file = File::create_new(&path).map_err(StoreError::io("create", &path))?;
        let taken = std::io::copy(&mut content.take(bytes), &mut file).map_err(StoreError::io("write", &path))?;
        file.sync_data().map_err(StoreError::io("flush", &path))?;
        let digest = hash_file(&path).map_err(StoreError::io("read", &path))?;
        Ok((digest, taken))
    }

    /// Is this artifact whole, with exactly those files, whose digests are known?
    #[must_use]
    pub fn holds_artifact(&self, id: &ArtifactId, files: &[(String, Digest)]) -> bool {
        let text = fs::read(self.path(&artifact_place(id)).join("artifact.json")).unwrap_or_default();
        let Ok(artifact) = serde_json::from_slice::<Artifact>(&text) else { return false };
        let told: BTreeSet<(&str, Digest)> = files.iter().map(|(name, digest)| (name.as_str(), *digest)).collect();
        let named: BTreeSet<(&str, Digest)> =
            artifact.parts.iter().map(|part| (part.name.as_str(), part.digest)).collect();
        let folder = self.path(&artifact_place(id));
        let size = |name: &str| fs::metadata(folder.join(name)).map(|metadata| metadata.len()).ok();
        artifact.id() == *id
            && told == named
            && artifact.parts.len() == named.len()
            && artifact.parts.iter().all(|part| size(&part.name) == Some(part.bytes))
    }

    /// The record of this key, if it is whole and its preimage gives the key.
    #[must_use]
    pub fn result(&self, key: &NodeKey, folder: &str) -> Option<NodeResult> {
        let text = fs::read(self.path(&record_place(key, folder))).ok()?;
        let told = |result: &NodeResult| result.key == *key && hash_bytes(&encode(&result.preimage)) == key.0;
        read_record(&text).filter(told)
    }

    /// The record of this run, if all of its files are whole.
    #[must_use]
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

    /// How many rows this segment holds, if every byte of it is right.
    #[must_use]
    pub fn memo_rows(&self, base: &Digest, segment: &Digest) -> Option<usize> {
        let bytes = fs::read(self.path(&memo_place(base, segment))).ok()?;
        segment_keys(&bytes).map(|keys| keys.len())
    }

    /// Puts an artifact that was checked into the store. A damaged one of that name makes room.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn admit_artifact(&self, id: &ArtifactId) -> Result<Admission, StoreError> {
        if self.store.check(id).is_ok() {
            return Ok(Admission::Known);
        }
        self.store.note_pending(&Pending::Artifact(*id))?;
        self.store.discard(id)?;
        self.store.publish(&self.path(&artifact_place(id)), &self.store.artifact_folder(id))?;
        Ok(Admission::New)
    }

    /// Puts a record that was checked into the store.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn admit_result(&self, result: &NodeResult, folder: &str) -> Result<Admission, StoreError> {
        let known = self.store.result(&result.key);
        if let Some(known) = known {
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

    /// Adds the rows of a segment that was checked to the memo, without those that are known: what was paid for here
    /// stays. Gives how many were not known.
    ///
    /// # Errors
    /// When the memo cannot be read or written.
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
                // A stamp from the future would win against all that is paid for here later.
                match record(found.stamp.min(time), &found.key, found.payload()) {
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

    /// Puts the record of a run that was checked into the store, with a mark that it was imported.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn admit_run(&self, id: &str) -> Result<Admission, StoreError> {
        let target = self.store.run_folder(id);
        if target.exists() {
            return Ok(Admission::Known);
        }
        let folder = self.path("runs").join(id);
        let mark = folder.join(IMPORTED);
        fs::write(&mark, "").map_err(StoreError::io("write", &mark))?;
        self.store.note_pending(&Pending::Run(id.to_owned()))?;
        self.store.publish(&folder, &target)?;
        Ok(Admission::New)
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::debug!("left {} behind: {error}", self.folder.display());
        }
    }
}

/// Where an artifact lies in a store, with `/`.
#[must_use]
pub fn artifact_place(id: &ArtifactId) -> String {
    let hex = id.to_string();
    format!("artifacts/{}/{hex}", &hex[..2])
}

/// Where the record of a key lies in a store, in `results` or `collected`.
#[must_use]
pub fn record_place(key: &NodeKey, folder: &str) -> String {
    let hex = key.to_string();
    format!("{folder}/{}/{hex}.json", &hex[..2])
}

/// Where a segment of a memo lies that is named by its content.
#[must_use]
pub fn memo_place(base: &Digest, segment: &Digest) -> String {
    let hex = base.hex();
    format!("memo/{}/{hex}/{segment}.rows", &hex[..2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::Usage;

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

        // Both answers claim to be the newest ones for good.
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
