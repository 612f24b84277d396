//! Content digests of files outside the store, remembered by (path, size, mtime, inode, ctime) so that they are read once.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::digest::{Digest, hash_reader};
use super::node_key::SourceIdentity;
use super::seen::{SeenFile, SeenSource};
use crate::operator::listing::{FileStat, file_name, files_of};
use crate::operator::{Source, SourceProblem};

/// A file changed this recently may change again within its time stamp's grain: its digest is not remembered, and it is
/// read again after the node ran.
const RACY: Duration = Duration::from_secs(2);
/// Time stamps of a local file system have at least this grain: after so long another change gets another stamp.
const GRAIN: Duration = Duration::from_millis(20);
/// How often a file that changes while it is digested is tried.
const TRIES: u32 = 5;

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
    fn new(stat: FileStat, digest: Digest) -> Self {
        let FileStat { size, mtime_ns, inode, ctime_ns } = stat;
        Self { size, mtime_ns, inode, ctime_ns, digest }
    }

    fn stat(&self) -> FileStat {
        FileStat { size: self.size, mtime_ns: self.mtime_ns, inode: self.inode, ctime_ns: self.ctime_ns }
    }
}

/// Asks a program for its version; `None`: it does not say.
pub type AskVersion = fn(&Path) -> Option<String>;

/// Digests of outside files.
pub struct SourceDigests {
    known: BTreeMap<PathBuf, StatRecord>,
    changed: bool,
    stopped: Box<dyn Fn() -> bool + Send + Sync>,
    ask: AskVersion,
    /// What programs answered: each is asked once.
    versions: BTreeMap<PathBuf, Option<String>>,
}

impl SourceDigests {
    /// Starts from what an earlier run saw. `ask` asks programs for their versions.
    #[must_use]
    pub fn new(known: BTreeMap<PathBuf, StatRecord>, ask: AskVersion) -> Self {
        Self { known, changed: false, stopped: Box::new(|| false), ask, versions: BTreeMap::new() }
    }

    /// Gives up with [`SourceProblem::Stopped`] once `stopped` says so.
    #[must_use]
    pub fn until(mut self, stopped: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.stopped = Box::new(stopped);
        self
    }

    /// What to keep for the next run, if anything is new.
    #[must_use]
    pub fn changed(&self) -> Option<&BTreeMap<PathBuf, StatRecord>> {
        self.changed.then_some(&self.known)
    }

    /// The identities of a source (one per file, in path order), and what was seen of its files. Sources on other machines
    /// are identified by their address: a URL that changes its content must change its name (a revision, a version), or the
    /// node must be told to run, to be read again.
    ///
    /// # Errors
    /// When a file is missing or unreadable, or the run was told to stop.
    pub fn identify(
        &mut self,
        source: &Source,
        directory: &Path,
    ) -> Result<(Vec<SourceIdentity>, SeenSource), SourceProblem> {
        let written = source.written();
        match source {
            Source::Identity(text) => Ok((vec![identity("identity", text)], SeenSource::empty(written))),
            Source::Awaited { address } => Err(SourceProblem::NotFetched { address: address.clone() }),
            Source::Program(path) => self.program(path, written),
            _ if source.is_remote() => Ok((vec![identity(&written, &written)], SeenSource::empty(written))),
            _ => self.files(source, written, directory),
        }
    }

    fn files(
        &mut self,
        source: &Source,
        written: String,
        directory: &Path,
    ) -> Result<(Vec<SourceIdentity>, SeenSource), SourceProblem> {
        let listing = files_of(source, directory, &*self.stopped)?;
        let folders = listing.folders.into_iter().map(|folder| {
            let stat = FileStat::of(&folder).map_err(|error| unreadable(&written, &error))?;
            Ok((folder, stat))
        });
        let folders = folders.collect::<Result<Vec<_>, _>>()?;
        let mut files = Vec::with_capacity(listing.files.len());
        for (name, path) in listing.files {
            let (stat, digest, young) = self.digest(&path).map_err(|error| unreadable(&written, &error))?;
            files.push(SeenFile { name, path, stat, digest: Some(digest), young });
        }
        let content =
            |file: &SeenFile| identity(&file.name, &file.digest.map(|digest| digest.hex()).unwrap_or_default());
        let notes = listing.notes.iter().map(|(name, what)| identity(name, what));
        let identities = files.iter().map(content).chain(notes).collect();
        Ok((identities, SeenSource { written, files, folders, notes: listing.notes }))
    }

    /// A program by its version, or by its content where it does not tell one.
    fn program(&mut self, path: &Path, written: String) -> Result<(Vec<SourceIdentity>, SeenSource), SourceProblem> {
        let name = format!("program {}", file_name(path));
        let stat = FileStat::of(path).map_err(|error| unreadable(&written, &error))?;
        let ask = self.ask;
        let version = self.versions.entry(path.to_owned()).or_insert_with(|| ask(path)).clone();
        let (content, file) = if let Some(version) = version {
            (version, SeenFile { name: name.clone(), path: path.to_owned(), stat, digest: None, young: false })
        } else {
            let (stat, digest, young) = self.digest(path).map_err(|error| unreadable(&written, &error))?;
            let file = SeenFile { name: name.clone(), path: path.to_owned(), stat, digest: Some(digest), young };
            (digest.hex(), file)
        };
        let seen = SeenSource { files: vec![file], ..SeenSource::empty(written) };
        Ok((vec![identity(&name, &content)], seen))
    }

    /// The digest of a file that did not change while it was read, what was seen of it, and whether it is so young that it
    /// may change unseen.
    fn digest(&mut self, file: &Path) -> std::io::Result<(FileStat, Digest, bool)> {
        for _ in 0..TRIES {
            let seen = settled(file)?;
            if let Some(known) = self.known.get(file).filter(|known| known.stat() == seen) {
                return Ok((seen, known.digest, false));
            }
            let opened = std::fs::File::open(file)?;
            let digest = hash_reader(Stoppable { bytes: opened, stopped: &*self.stopped })?;
            if FileStat::of(file)? != seen {
                continue;
            }
            let young = seen.age().is_none_or(|age| age <= RACY);
            if !young {
                self.known.insert(file.to_owned(), StatRecord::new(seen, digest));
                self.changed = true;
            }
            return Ok((seen, digest, young));
        }
        Err(std::io::Error::other(format!("{} changes again and again while it is read", file.display())))
    }
}

/// What the file system says of a file, once its time stamp is so old that another change gives another one.
fn settled(file: &Path) -> std::io::Result<FileStat> {
    let mut stat = FileStat::of(file)?;
    for _ in 0..TRIES {
        match stat.age().and_then(|age| GRAIN.checked_sub(age)) {
            Some(wait) if !wait.is_zero() => std::thread::sleep(wait),
            _ => break,
        }
        stat = FileStat::of(file)?;
    }
    Ok(stat)
}

fn identity(name: &str, content: &str) -> SourceIdentity {
    SourceIdentity { name: name.to_owned(), content: content.to_owned() }
}

fn unreadable(written: &str, error: &std::io::Error) -> SourceProblem {
    match error.kind() {
        std::io::ErrorKind::TimedOut => SourceProblem::Stopped,
        _ => SourceProblem::Unreadable { path: written.to_owned(), reason: error.to_string() },
    }
}

/// Bytes that end in an error once the run is told to stop.
struct Stoppable<'a, R> {
    bytes: R,
    stopped: &'a (dyn Fn() -> bool + Send + Sync),
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if (self.stopped)() {
            // Not `Interrupted`: readers try again after that.
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
        }
        self.bytes.read(buffer)
    }
}
