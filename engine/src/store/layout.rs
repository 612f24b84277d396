//! Where things lie in a store.
//!
//! ```text
//! .searchmill/
//!   format                       "1"
//!   results/ab/<node key>.json   what a node gave: outputs, preimage, figures
//!   collected/ab/<key>.json      the same of results that were removed, so that it can be said what they were
//!   artifacts/ab/<id>/           part-00000.parquet … or the files of a tree, and artifact.json
//!   memo/ab/<base>/*.rows        results of single external rows; answers of a model, by what was sent
//!   memo/ab/<base>/floor.json    from when on these rows count, once the node was forced
//!   runs/<run id>/               run.json, nodes.jsonl, events.jsonl
//!   pins/<name>.json             what is kept whatever happens
//!   checkpoints/ab/<node key>    state of a node that is being computed
//!   leases/<key>                 held while a process computes a node; leases/store while one uses the store
//!   pending/, remote.json        of the cache of a shared store: what is still to be sent, and to which store
//!   schedule/<name>/             what the daemon of `schedule` keeps
//!   tmp/                         unfinished work, named by its owner; <owner>.lock is locked while that process lives
//!   sources.json                 digests of outside files by (size, mtime, ctime, inode, device)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::artifact::ArtifactId;
use super::error::StoreError;
use super::process::{self, Owner};
use super::remote::Remote;
use crate::fingerprint::{NodeKey, StatRecord};

/// Version of this layout.
pub const STORE_FORMAT: u32 = 1;

/// What a store's folder holds, beside single files.
const FOLDERS: [&str; 6] = ["results", "artifacts", "memo", "runs", "leases", "tmp"];
/// The file that says that a folder is a store, written last.
const FORMAT: &str = "format";

/// A store in a local folder. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    root: Arc<PathBuf>,
    /// The name under which this process writes here.
    owner: Arc<Owner>,
    /// Artifacts whose files were read and are what was written.
    intact: Arc<Mutex<BTreeSet<ArtifactId>>>,
    /// What it is the cache of, if it is one.
    pub(super) remote: Option<Arc<Remote>>,
}

impl Store {
    /// Opens the store at `root`, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made or has another format.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let looked = Self::look(root)?;
        if !looked.exists() {
            refuse_strangers(root)?;
        }
        for folder in FOLDERS {
            let path = root.join(folder);
            fs::create_dir_all(&path).map_err(StoreError::io("create", &path))?;
        }
        let root = root.canonicalize().map_err(StoreError::io("open", root))?;
        let store = Self { root: Arc::new(root), ..looked };
        if !store.root.join(FORMAT).is_file() {
            // Tools that walk projects leave the store alone.
            store.write_file(&store.root.join(".gitignore"), b"*\n")?;
            store.write_file(&store.root.join(FORMAT), format!("{STORE_FORMAT}\n").as_bytes())?;
        }
        process::sweep(&store.root.join("tmp"));
        Ok(store)
    }

    /// The store at `root` as it is, for reading: nothing is made or removed. Where there is none, it is empty.
    ///
    /// # Errors
    /// When it has another format, or the place cannot be read.
    pub fn look(root: &Path) -> Result<Self, StoreError> {
        let whole = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let store = Self { root: Arc::new(whole), owner: Arc::new(Owner::new()), intact: Arc::default(), remote: None };
        let path = store.root.join(FORMAT);
        match fs::read_to_string(&path) {
            Ok(found) if found.trim() != STORE_FORMAT.to_string() => {
                let found = found.trim().to_owned();
                Err(StoreError::Format { path: store.root.to_path_buf(), found, wanted: STORE_FORMAT })
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("read", &path)(error)),
            _ => Ok(store),
        }
    }

    /// Is there a store?
    #[must_use]
    pub fn exists(&self) -> bool {
        self.remote.as_ref().map_or_else(|| self.root.join(FORMAT).is_file(), |remote| remote.exists())
    }

    /// Is it shared by several machines?
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.remote.is_some()
    }

    /// What `--store` calls it: a URL, or the folder.
    #[must_use]
    pub fn address(&self) -> String {
        self.remote.as_ref().map_or_else(|| self.root().display().to_string(), |remote| remote.url().to_owned())
    }

    /// Was the shared store asked in vain since it was opened, so that "unknown" may mean "not reached"?
    ///
    /// # Errors
    /// Why it was not reached.
    pub fn sound(&self) -> Result<(), StoreError> {
        let fault = self.remote.as_ref().and_then(|remote| remote.fault());
        fault.map_or(Ok(()), |fault| Err(StoreError::Location(fault)))
    }

    /// Notes that all files of an artifact are what was written.
    pub(super) fn note_intact(&self, id: ArtifactId) {
        self.intact.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    pub(super) fn is_noted_intact(&self, id: &ArtifactId) -> bool {
        self.intact.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// The store's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path under `tmp/` that no other process uses, on whatever machine.
    #[must_use]
    pub fn temporary(&self) -> PathBuf {
        self.owner.path_in(&self.root.join("tmp"))
    }

    /// A name that no other process has, on whatever machine.
    pub(super) fn process_name(&self) -> String {
        let path = self.temporary();
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The name that [`Store::is_alive`] knows this process by.
    pub(super) fn owner(&self) -> &str {
        self.owner.name()
    }

    /// Does another process of that name use the store now?
    pub(super) fn is_alive(&self, owner: &str) -> bool {
        owner != self.owner() && process::is_alive(&self.root.join("tmp"), owner)
    }

    /// Puts a task for another process under `tmp/`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_task(&self, task: &[u8]) -> Result<PathBuf, StoreError> {
        let path = self.temporary();
        fs::write(&path, task).map_err(StoreError::io("write", &path))?;
        Ok(path)
    }

    /// Removes a task; one that stays is swept with what else this process leaves.
    pub fn drop_task(&self, task: &Path) {
        drop(fs::remove_file(task));
    }

    /// A store of its own under `tmp/`, for work that must leave no trace. [`Store::remove`] removes it; what a killed
    /// process leaves is swept. Where this store cannot be written, it lies in the system's folder for temporary files.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn scratch(&self) -> Result<Self, StoreError> {
        let path = self.temporary();
        let outside = || std::env::temp_dir().join("searchmill").join(path.file_name().unwrap_or_default());
        Self::open(&path).or_else(|_| Self::open(&outside()))
    }

    /// Removes a whole store.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(self) -> Result<(), StoreError> {
        fs::remove_dir_all(self.root()).map_err(StoreError::io("remove", self.root()))
    }

    pub(super) fn result_path(&self, key: &NodeKey) -> PathBuf {
        let hex = key.0.hex();
        self.root.join("results").join(&hex[..2]).join(format!("{hex}.json"))
    }

    pub(super) fn tombstone_path(&self, key: &NodeKey) -> PathBuf {
        let hex = key.0.hex();
        self.root.join("collected").join(&hex[..2]).join(format!("{hex}.json"))
    }

    pub(super) fn lease_path(&self, key: &NodeKey) -> PathBuf {
        self.root.join("leases").join(key.0.hex())
    }

    /// Where the rows of a memo lie.
    #[must_use]
    pub fn memo_folder(&self, base: &crate::fingerprint::Digest) -> PathBuf {
        let hex = base.hex();
        self.root.join("memo").join(&hex[..2]).join(hex)
    }

    pub(super) fn run_folder(&self, id: &str) -> PathBuf {
        self.runs_folder().join(id)
    }

    pub(super) fn runs_folder(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Writes a small file so that it is either there whole or not at all, even after a crash.
    pub(super) fn write_file(&self, path: &Path, content: &[u8]) -> Result<(), StoreError> {
        let temporary = self.temporary();
        let mut file = File::create(&temporary).map_err(StoreError::io("create", &temporary))?;
        file.write_all(content).map_err(StoreError::io("write", &temporary))?;
        file.sync_data().map_err(StoreError::io("flush", &temporary))?;
        self.publish(&temporary, path)
    }

    /// Renames something finished to its place, durably.
    pub(super) fn publish(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.rename(from, to)?;
        sync_folder(to.parent().unwrap_or(&self.root))
    }

    /// Renames something finished to its place. After a power cut it may be gone again: enough for an artifact, whose
    /// loss is a miss, and whose record is flushed after it.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        match fs::rename(from, to) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let parent = to.parent().unwrap_or(&self.root);
                fs::create_dir_all(parent).map_err(StoreError::io("create", parent))?;
                fs::rename(from, to).map_err(StoreError::io("write", to))
            }
            Err(error) => Err(StoreError::io("write", to)(error)),
        }
    }

    /// Digests of outside files that earlier runs saw. Damaged: forgotten.
    #[must_use]
    pub fn known_sources(&self) -> BTreeMap<PathBuf, StatRecord> {
        let text = fs::read(self.root.join("sources.json")).unwrap_or_default();
        let list: Vec<(PathBuf, StatRecord)> = serde_json::from_slice(&text).unwrap_or_default();
        list.into_iter().collect()
    }

    /// Keeps digests of outside files for later runs.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_sources(&self, known: &BTreeMap<PathBuf, StatRecord>) -> Result<(), StoreError> {
        let list: Vec<_> = known.iter().collect();
        let text = serde_json::to_vec(&list).map_err(|e| StoreError::Location(e.to_string()))?;
        self.write_file(&self.root.join("sources.json"), &text)
    }
}

/// A folder of something else does not become a store: half of a new one may be there, and nothing more.
fn refuse_strangers(root: &Path) -> Result<(), StoreError> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("open", root)(error)),
    };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned());
    match names.filter(|name| !FOLDERS.contains(&name.as_str()) && name != ".gitignore").min() {
        None => Ok(()),
        Some(stranger) => Err(StoreError::Location(format!(
            "{} is no store and holds other things (`{stranger}`): name a folder of its own with --store",
            root.display()
        ))),
    }
}

fn sync_folder(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(StoreError::io("flush", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_makes_nothing_and_opening_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("a/store");
        let looked = Store::look(&root).unwrap();
        assert!(!looked.exists() && looked.run_ids().is_empty() && looked.known_sources().is_empty());
        assert!(!folder.path().join("a").exists());
        assert!(Store::open(&root).unwrap().exists() && looked.exists() && Store::look(&root).unwrap().exists());
        fs::write(root.join("format"), "99").unwrap();
        for refused in [Store::look(&root), Store::open(&root)] {
            assert!(refused.unwrap_err().to_string().contains("has format 99"));
        }
    }

    /// Two processes with one id, as in two containers.
    #[test]
    fn no_two_stores_use_the_same_names() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Store::open(folder.path()).unwrap(), Store::open(folder.path()).unwrap());
        assert!(one.temporary() != other.temporary() && one.process_name() != other.process_name());
        assert_eq!(one.owner(), one.clone().owner(), "clones are one process");
        let task = one.keep_task(b"a task").unwrap();
        assert!(other.is_alive(one.owner()) && !one.is_alive(one.owner()));
        drop(Store::open(folder.path()).unwrap());
        assert!(task.exists(), "the files of the living stay");
        drop(one);
        drop(Store::open(folder.path()).unwrap());
        assert!(!task.exists(), "those of the dead go");
    }

    #[test]
    fn a_folder_of_something_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "").unwrap();
        let refused = Store::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("`thesis.tex`") && refused.contains("--store"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let file = folder.path().join("thesis.tex");
        assert!(Store::open(&file).is_err() && Store::look(&file).is_err(), "a file is no folder");
        // A process that was killed while it made the store leaves it without `format`.
        let half = folder.path().join("half");
        fs::create_dir_all(half.join("results")).unwrap();
        assert!(Store::open(&half).unwrap().exists());
    }
}
