//! Content digests of files outside the store, remembered by (path, size, mtime, inode) so that they are read once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::digest::{Digest, hash_file};
use super::node_key::SourceIdentity;
use crate::operator::Source;

/// A file changed this recently may change again within its time stamp's grain: it is hashed every time.
const RACY: Duration = Duration::from_secs(2);

/// What a source cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceProblem {
    /// Nothing is there.
    NotFound {
        /// As written.
        path: String,
    },
    /// It has not been fetched yet.
    NotFetched {
        /// Where it comes from.
        address: String,
    },
    /// It is there but cannot be read.
    Unreadable {
        /// As written.
        path: String,
        /// Why.
        reason: String,
    },
}

impl std::fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound { path } => write!(f, "`{path}` is not there"),
            Self::NotFetched { address } => write!(f, "`{address}` is not here yet"),
            Self::Unreadable { path, reason } => write!(f, "`{path}` cannot be read: {reason}"),
        }
    }
}

/// What was seen of a file when it was hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatRecord {
    size: u64,
    mtime_ns: u128,
    inode: u64,
    /// When the file system says that it changed: no program sets that.
    #[serde(default)]
    ctime_ns: i128,
    digest: Digest,
}

impl StatRecord {
    fn stat(&self) -> Stat {
        (self.size, self.mtime_ns, self.inode, self.ctime_ns)
    }
}

/// Size, time of the last change as files tell it, inode, time of the last change as the file system tells it.
type Stat = (u64, u128, u64, i128);

/// What stands for a source in a key, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Its identity.
    pub identity: SourceIdentity,
    /// The local file, if it is one.
    pub path: Option<PathBuf>,
}

impl From<SourceIdentity> for Located {
    fn from(identity: SourceIdentity) -> Self {
        Self { identity, path: None }
    }
}

/// Digests of outside files.
#[derive(Debug, Default)]
pub struct SourceDigests {
    known: BTreeMap<PathBuf, StatRecord>,
    changed: bool,
}

impl SourceDigests {
    /// Starts from what an earlier run saw.
    #[must_use]
    pub fn new(known: BTreeMap<PathBuf, StatRecord>) -> Self {
        Self { known, changed: false }
    }

    /// What to keep for the next run, if anything is new.
    #[must_use]
    pub fn changed(&self) -> Option<&BTreeMap<PathBuf, StatRecord>> {
        self.changed.then_some(&self.known)
    }

    /// The identities of a source: one per file, in path order. URLs other than local paths are identified by `remote`.
    ///
    /// # Errors
    /// When a file is missing or unreadable.
    pub fn identify(
        &mut self,
        source: &Source,
        directory: &Path,
        remote: &dyn Fn(&str) -> Result<SourceIdentity, SourceProblem>,
    ) -> Result<Vec<Located>, SourceProblem> {
        match source {
            Source::Identity(text) => {
                Ok(vec![SourceIdentity { name: "identity".into(), content: text.clone() }.into()])
            }
            Source::Path(url) if source.is_remote() => Ok(vec![remote(url)?.into()]),
            Source::Fetched { path, address } if !path.is_file() => {
                Err(SourceProblem::NotFetched { address: address.clone() })
            }
            Source::Fetched { path, address } => Ok(vec![self.identify_file(address, &file_name(path), path)?]),
            Source::Path(path) => {
                let files = local_files(path, directory)?;
                files.iter().map(|(name, file)| self.identify_file(path, name, file)).collect()
            }
        }
    }

    fn identify_file(&mut self, written: &str, name: &str, file: &Path) -> Result<Located, SourceProblem> {
        let unreadable =
            |error: std::io::Error| SourceProblem::Unreadable { path: written.to_owned(), reason: error.to_string() };
        let digest = self.digest(file).map_err(unreadable)?;
        let identity = SourceIdentity { name: name.to_owned(), content: digest.hex() };
        Ok(Located { identity, path: Some(file.to_owned()) })
    }

    fn digest(&mut self, file: &Path) -> std::io::Result<Digest> {
        let seen = stat(file)?;
        if let Some(known) = self.known.get(file).filter(|known| known.stat() == seen) {
            return Ok(known.digest);
        }
        let (size, mtime_ns, inode, ctime_ns) = seen;
        let digest = hash_file(file)?;
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().saturating_sub(mtime_ns);
        if age > RACY.as_nanos() && stat(file)? == seen {
            self.known.insert(file.to_owned(), StatRecord { size, mtime_ns, inode, ctime_ns, digest });
            self.changed = true;
        }
        Ok(digest)
    }
}

fn stat(file: &Path) -> std::io::Result<Stat> {
    let metadata = std::fs::metadata(file)?;
    let mtime = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((metadata.len(), mtime.as_nanos(), inode(&metadata), ctime_ns(&metadata)))
}

#[cfg(unix)]
fn ctime_ns(metadata: &std::fs::Metadata) -> i128 {
    use std::os::unix::fs::MetadataExt;
    i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn ctime_ns(_metadata: &std::fs::Metadata) -> i128 {
    0
}

#[cfg(unix)]
fn inode(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_metadata: &std::fs::Metadata) -> u64 {
    0
}

/// Files behind a path, pattern or folder, as (name for the key, path), sorted by path.
fn local_files(written: &str, directory: &Path) -> Result<Vec<(String, PathBuf)>, SourceProblem> {
    let path = directory.join(written.strip_prefix("file://").unwrap_or(written));
    let not_found = || SourceProblem::NotFound { path: written.to_owned() };
    if path.is_dir() {
        let mut files = Vec::new();
        walk(&path, &path, &mut files)
            .map_err(|error| SourceProblem::Unreadable { path: written.to_owned(), reason: error.to_string() })?;
        files.sort();
        return Ok(files);
    }
    if path.exists() {
        return Ok(vec![(file_name(&path), path)]);
    }
    let pattern = path.to_str().ok_or_else(not_found)?;
    let mut found: Vec<PathBuf> =
        glob::glob(pattern).map_err(|_| not_found())?.filter_map(Result::ok).filter(|file| file.is_file()).collect();
    found.sort();
    if found.is_empty() {
        Err(not_found())
    } else {
        Ok(found.into_iter().map(|file| (file_name(&file), file)).collect())
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<(String, PathBuf)>) -> std::io::Result<()> {
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                files.push((name, path));
            }
        }
    }
    Ok(())
}
