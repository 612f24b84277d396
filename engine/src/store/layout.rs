//! The files of a store.
//!
//! ```text
//! .searchmill/
//!   format                        "2"
//!   results/ab/<node key>.json    result of a node: outputs, preimage, figures, summary, usage, seconds, run
//!   collected/ab/<node key>.json  tombstones: records of collected results
//!   artifacts/ab/<id>/            part-00000.parquet … or the files of a tree, and nothing else
//!   artifacts/ab/<id>.json        description of the artifact: type and files, with their digests
//!   released/ab/<id>.json         notes of artifacts whose files were removed, because they can be made again
//!   memo/ab/<base>/*.rows         cached rows of external nodes, blocks of `Map` nodes, answers of a model
//!   memo/ab/<base>/floor.json     stamp from which these rows count, if the node was forced
//!   runs/<run id>/                run.json (with --set, --params, --limit as given), nodes.jsonl, events.jsonl
//!   pins/<name>.json              artifacts that are never collected
//!   pages/<owner>.<machine>.json  addresses of servers that show the store now (see `records::pages`)
//!   labels/labels.jsonl           what people say of rows (see `records::labels`)
//!   checkpoints/ab/<node key>     state of a node that is being computed, replaced as a whole
//!   leases/<key>                  locked while a process computes a node; leases/store while one uses the store,
//!                                 leases/door while one begins to, or releases artifacts
//!   pending/, remote.json         in the cache of a shared store: pending uploads, and the store's identity
//!   spent/<pipeline>/<run>        what a run spent (see `records::spending`)
//!   schedule/<name>/              state of the `schedule` daemon (see `records::schedules`)
//!   tmp/                          unfinished work, named by its owner; <owner>.<machine>.lock is locked while it lives
//!   sources.json                  digests of external files by (size, mtime, ctime, inode, device)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::artifacts::artifact::ArtifactId;
use super::error::{IoContext, StoreError};
use super::files::if_there;
use super::lease::owner::{self, Owner};
use super::nofollow;
use super::paths::{record_place, sharded};
use super::records::checksum::{read_json, seal};
use super::remote::Remote;
use crate::fingerprint::{Digest, NodeKey, StatRecord};

/// Version of this layout.
pub const STORE_FORMAT: u32 = 2;

/// Folders of a store.
const FOLDERS: [&str; 6] = ["results", "artifacts", "memo", "runs", "leases", "tmp"];
/// The file that marks a folder as a store, written last.
const FORMAT: &str = "format";
/// The file of digests of external files.
pub(super) const SOURCES: &str = "sources.json";

/// A store in a local folder. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    root: Arc<PathBuf>,
    /// The name under which this process writes.
    owner: Arc<Owner>,
    /// Artifacts whose files were verified since the store was opened.
    intact: Arc<Mutex<BTreeSet<ArtifactId>>>,
    /// The shared store of which this is the cache, if any.
    pub(super) remote: Option<Arc<Remote>>,
}

impl Store {
    /// Opens the store at `root`, creating it if needed.
    ///
    /// # Errors
    /// Fails if it cannot be created or has another format.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let looked = Self::look(root)?;
        if !looked.exists() {
            // A folder of something else does not become a store; one of a half-created store does.
            let mut strangers = BTreeSet::new();
            for entry in if_there(fs::read_dir(root)).context("open", root)?.into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if !FOLDERS.contains(&name.as_str()) && name != ".gitignore" {
                    strangers.insert(name);
                }
            }
            if let Some(entry) = strangers.pop_first() {
                return Err(StoreError::NotAStore(root.to_owned(), entry));
            }
        }
        // The store itself may be reached through links. What it contains may not.
        fs::create_dir_all(root).context("create", root)?;
        let root = root.canonicalize().context("open", root)?;
        for folder in FOLDERS {
            let path = root.join(folder);
            nofollow::create_folder(&path).context("create", &path)?;
        }
        let store = Self { root: Arc::new(root), ..looked };
        if !store.root.join(FORMAT).is_file() {
            // Tools that walk projects skip the store.
            store.write_file(&store.root.join(".gitignore"), b"*\n")?;
            // Last: with it, the folder is a store. A process that is killed before leaves what the next one completes.
            store.write_file(&store.root.join(FORMAT), format!("{STORE_FORMAT}\n").as_bytes())?;
        }
        // Files of living processes are safe: their locks are held.
        owner::sweep(&store.root.join("tmp"));
        Ok(store)
    }

    /// Opens the store at `root` for reading; creates and removes nothing. A missing store is empty.
    ///
    /// # Errors
    /// Fails if it has another format, or the path cannot be read.
    pub fn look(root: &Path) -> Result<Self, StoreError> {
        let whole = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let store = Self { root: Arc::new(whole), owner: Arc::new(Owner::new()), intact: Arc::default(), remote: None };
        let path = store.root.join(FORMAT);
        match if_there(fs::read_to_string(&path)).context("read", &path)? {
            Some(text) if text.trim() != STORE_FORMAT.to_string() => {
                let (path, found) = (store.root.to_path_buf(), text.trim().to_owned());
                Err(StoreError::Format { path, found, wanted: STORE_FORMAT })
            }
            _ => Ok(store),
        }
    }

    /// Whether the store exists.
    pub fn exists(&self) -> bool {
        // The local copy of a shared store exists as soon as that is opened.
        self.remote.as_ref().map_or_else(|| self.root.join(FORMAT).is_file(), |remote| remote.exists)
    }

    /// Whether several machines share it.
    pub fn is_shared(&self) -> bool {
        self.remote.is_some()
    }

    /// Returns the value of `--store`: a URL or the folder.
    pub fn address(&self) -> String {
        self.remote.as_ref().map_or_else(|| self.root().display().to_string(), |remote| remote.url.clone())
    }

    /// Reports whether every query of the shared store since it was opened succeeded. After a failure, "unknown" may
    /// mean "not reached".
    ///
    /// # Errors
    /// Why it was not reached.
    pub fn sound(&self) -> Result<(), StoreError> {
        let fault = self.remote.as_ref().and_then(|remote| remote.learnt().fault.clone());
        fault.map_or(Ok(()), |fault| Err(StoreError::Earlier(fault)))
    }

    /// The artifacts all of whose files are known to be verified.
    pub(super) fn intact_ids(&self) -> MutexGuard<'_, BTreeSet<ArtifactId>> {
        self.intact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the store's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a path under `tmp/` that no other process uses, on any machine.
    pub fn temporary(&self) -> PathBuf {
        self.owner.path_in(&self.root.join("tmp"))
    }

    /// Returns a name that no other process has, on any machine.
    pub(super) fn process_name(&self) -> String {
        self.temporary().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Returns the name by which [`Store::is_alive`] knows this process.
    pub(super) fn owner(&self) -> &str {
        self.owner.name()
    }

    /// Whether another process of that name uses the store now.
    pub(super) fn is_alive(&self, owner: &str) -> bool {
        owner != self.owner() && owner::is_alive(&self.root.join("tmp"), owner)
    }

    /// Stores a task for another process under `tmp/`.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn keep_task(&self, task: &[u8]) -> Result<PathBuf, StoreError> {
        let path = self.temporary();
        nofollow::write(&path, task).context("write", &path)?;
        Ok(path)
    }

    /// Removes a task. If that fails, a sweep removes it later.
    pub fn drop_task(&self, task: &Path) {
        drop(nofollow::remove_file(task));
    }

    /// Creates a separate store under `tmp/`, for work that must leave no trace. [`Store::remove`] removes it; a sweep
    /// removes what a killed process leaves. If this store is read-only, it is created in the system's temporary
    /// folder.
    ///
    /// # Errors
    /// Fails if it cannot be created.
    pub fn scratch(&self) -> Result<Self, StoreError> {
        let path = self.temporary();
        Self::open(&path).or_else(|_| {
            Self::open(&std::env::temp_dir().join("searchmill").join(path.file_name().unwrap_or_default()))
        })
    }

    /// Removes the whole store.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub fn remove(self) -> Result<(), StoreError> {
        nofollow::remove(self.root()).context("remove", self.root())
    }

    /// Returns the path of a key's record, in `results` or `collected`.
    pub(super) fn record_path(&self, key: &NodeKey, folder: &str) -> PathBuf {
        self.root.join(record_place(key, folder))
    }

    /// Returns the folder of a memo.
    pub fn memo_folder(&self, base: &Digest) -> PathBuf {
        self.root.join(sharded("memo", &base.hex()))
    }

    pub(super) fn run_folder(&self, id: &str) -> PathBuf {
        self.root.join("runs").join(id)
    }

    /// Writes a small file atomically, even across a crash.
    pub(super) fn write_file(&self, path: &Path, content: &[u8]) -> Result<(), StoreError> {
        self.write_pieces(path, &[content])
    }

    /// Writes a file of some pieces like [`Store::write_file`].
    pub(super) fn write_pieces(&self, path: &Path, pieces: &[&[u8]]) -> Result<(), StoreError> {
        let temporary = self.temporary();
        let mut file = nofollow::create(&temporary).context("create", &temporary)?;
        for piece in pieces {
            file.write_all(piece).context("write", &temporary)?;
        }
        // Before the rename: after a power failure, the name could otherwise lead to an empty file.
        file.sync_data().context("flush", &temporary)?;
        self.publish(&temporary, path)
    }

    /// Renames a finished file or folder into place, durably.
    pub(super) fn publish(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.rename(from, to)?;
        // A rename is only in memory until its folder is flushed. The caller reports what it published as done.
        let parent = to.parent().unwrap_or(&self.root);
        File::open(parent).and_then(|folder| folder.sync_all()).context("flush", parent)
    }

    /// Renames a finished file or folder into place. A power failure may undo it. That suffices for an artifact: its
    /// loss is a cache miss, and its record is flushed afterwards.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        // Most folders exist: they are created only where a rename shows that one is missing.
        if if_there(nofollow::rename(from, to)).context("write", to)?.is_none() {
            let parent = to.parent().unwrap_or(&self.root);
            nofollow::create_folder(parent).context("create", parent)?;
            nofollow::rename(from, to).context("write", to)?;
        }
        Ok(())
    }

    /// Returns the digests of external files that earlier runs saw; none if the file is damaged.
    pub fn known_sources(&self) -> BTreeMap<PathBuf, StatRecord> {
        // A list without a checksum, of an earlier version, is not read: the files are hashed again.
        read_json::<KnownSources>(&self.root.join(SOURCES)).unwrap_or_default().files.into_iter().collect()
    }

    /// Stores digests of external files for later runs.
    ///
    /// # Errors
    /// Fails if they cannot be written.
    pub fn keep_sources(&self, known: &BTreeMap<PathBuf, StatRecord>) -> Result<(), StoreError> {
        let list = KnownSources { files: known.clone().into_iter().collect() };
        self.write_file(&self.root.join(SOURCES), &seal(serde_json::to_vec(&list)?))
    }
}

/// Digests of external files, as kept between runs.
#[derive(Default, Serialize, Deserialize)]
struct KnownSources {
    files: Vec<(PathBuf, StatRecord)>,
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
        for (format, advice) in [("1\n", "export --memo"), ("99\n", "use the searchmill that wrote it")] {
            fs::write(root.join("format"), format).unwrap();
            for refused in [Store::look(&root), Store::open(&root)] {
                let error = refused.unwrap_err().to_string();
                assert!(
                    error.contains(&format!("has format {}, ", format.trim())) && error.contains(advice),
                    "{error}"
                );
            }
        }
    }

    /// Two processes with the same id, as in two containers.
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
        // A process that is killed while it creates the store leaves it without `format`.
        let half = folder.path().join("half");
        fs::create_dir_all(half.join("results")).unwrap();
        assert!(Store::open(&half).unwrap().exists());
    }
}
