//! Hashes external files, with digests cached by (path, size, mtime, inode, ctime, device).
//!
//! Digests on read-only file systems (images) are not cached: another image mounted at the same place may agree in all
//! of these.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::digest::{Digest, hash_reader};
use super::node_key::SourceIdentity;
use super::seen::{SeenFile, SeenSource};
use crate::operator::listing::{FileStat, file_name, files_of};
use crate::operator::{Source, SourceProblem, open_regular};

/// Files changed within this time are hashed again after the node ran, and their digest is not cached: they may change
/// again under the same time stamp. A page of a mapped file gets a new time stamp only when it is written back, after
/// half a minute (`vm.dirty_expire_centisecs`) and a little more.
const RACY: Duration = Duration::from_mins(1);
/// Resolution of a local file system's time stamps: after this time, another change gets another stamp.
const GRAIN: Duration = Duration::from_millis(20);
/// Attempts to hash a file that changes meanwhile.
const TRIES: u32 = 5;

/// Metadata and digest of a hashed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatRecord {
    size: u64,
    mtime_ns: u128,
    inode: u64,
    /// Time of the last change according to the file system; programs cannot set it.
    #[serde(default)]
    ctime_ns: i128,
    #[serde(default)]
    device: u64,
    digest: Digest,
}

impl StatRecord {
    fn new(stat: FileStat, digest: Digest) -> Self {
        let FileStat { size, mtime_ns, inode, ctime_ns, device } = stat;
        Self { size, mtime_ns, inode, ctime_ns, device, digest }
    }

    fn stat(&self) -> FileStat {
        let Self { size, mtime_ns, inode, ctime_ns, device, .. } = *self;
        FileStat { size, mtime_ns, inode, ctime_ns, device }
    }
}

/// Asks a program for its version; `None` if it does not report one.
pub type AskVersion = fn(&Path) -> Option<String>;

/// The identities of sources, and what was seen of them.
type Identified<Seen> = Result<(Vec<SourceIdentity>, Seen), SourceProblem>;

/// Digests of external files, shared by threads: hashing one file does not delay another.
pub struct SourceDigests {
    known: Mutex<BTreeMap<PathBuf, StatRecord>>,
    changed: AtomicBool,
    stopped: Box<dyn Fn() -> bool + Send + Sync>,
    ask: AskVersion,
    /// Reported versions, so that a program is not asked for each node.
    versions: Mutex<BTreeMap<PathBuf, Option<String>>>,
    /// One lock per file that is being hashed, so that nodes that read the same file hash it once.
    hashing: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>>,
    /// Devices of read-only file systems, as `major:minor`.
    read_only: BTreeSet<String>,
}

impl SourceDigests {
    /// Starts from the digests of an earlier run. `ask` asks programs for their versions.
    pub fn new(known: BTreeMap<PathBuf, StatRecord>, ask: AskVersion) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            known: Mutex::new(known),
            changed: AtomicBool::new(false),
            stopped: Box::new(|| false),
            ask,
            versions: Mutex::default(),
            hashing: Mutex::default(),
            read_only: read_only_devices(&mounts),
        }
    }

    /// Stops with [`SourceProblem::Stopped`] once `stopped` returns true.
    #[must_use]
    pub fn until(mut self, stopped: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.stopped = Box::new(stopped);
        self
    }

    /// Returns the digests to store for the next run, if any changed.
    pub fn changed(&self) -> Option<BTreeMap<PathBuf, StatRecord>> {
        if self.changed.load(Ordering::Relaxed) { Some(locked(&self.known).clone()) } else { None }
    }

    /// Returns the identities of sources (one per file, in path order), and the files seen for each.
    ///
    /// Remote sources are identified by their address. If the content of a URL changes, its name must change too (a
    /// revision, a version), or the node must be forced to run.
    ///
    /// # Errors
    /// Fails if a file is missing or unreadable, or the run was stopped.
    pub fn identify(&self, sources: &[Source], directory: &Path) -> Identified<Vec<SeenSource>> {
        let (mut identities, mut seen) = (Vec::new(), Vec::with_capacity(sources.len()));
        for (place, source) in sources.iter().enumerate() {
            let (found, files) = self.one(source, directory)?;
            identities.extend(found.into_iter().map(|found| SourceIdentity { place: place as u64, ..found }));
            seen.push(files);
        }
        Ok((identities, seen))
    }

    fn one(&self, source: &Source, directory: &Path) -> Identified<SeenSource> {
        let written = source.written();
        match source {
            Source::Identity(text) => Ok((vec![identity("identity", text)], SeenSource::empty(written))),
            Source::Awaited { address } => Err(SourceProblem::NotFetched(address.clone())),
            Source::Program(path) => self.program(path, written, self.version(path)),
            Source::Executable(path) => self.program(path, written, None),
            _ if source.is_remote() => Ok((vec![identity(&written, &written)], SeenSource::empty(written))),
            _ => self.files(source, written, directory),
        }
    }

    fn files(&self, source: &Source, written: String, directory: &Path) -> Identified<SeenSource> {
        let listing = files_of(source, directory, &*self.stopped)?;
        let (mut files, mut folders, mut identities) = (Vec::new(), Vec::new(), Vec::new());
        for folder in listing.folders {
            let stat = FileStat::of(&folder).map_err(|error| unreadable(&written, &error))?;
            folders.push((folder, stat));
        }
        for (name, path) in listing.files {
            let file = self.seen(name, path, &written)?;
            identities.push(identity(&file.name, &content(&file)));
            files.push(file);
        }
        for (name, what) in &listing.notes {
            identities.push(identity(name, what));
        }
        Ok((identities, SeenSource { written, files, folders, notes: listing.notes }))
    }

    /// Identifies a program by its version, or by its content if it reports none.
    fn program(&self, path: &Path, written: String, version: Option<String>) -> Identified<SeenSource> {
        let (name, path) = (format!("program {}", file_name(path)), path.to_owned());
        let file = if version.is_some() {
            let stat = FileStat::of(&path).map_err(|error| unreadable(&written, &error))?;
            SeenFile { name, path, stat, digest: None, young: false }
        } else {
            self.seen(name, path, &written)?
        };
        let identities = vec![identity(&file.name, &version.unwrap_or_else(|| content(&file)))];
        Ok((identities, SeenSource { files: vec![file], ..SeenSource::empty(written) }))
    }

    fn version(&self, path: &Path) -> Option<String> {
        // Not locked while a program runs: two threads may ask the same one twice.
        if let Some(known) = locked(&self.versions).get(path) {
            return known.clone();
        }
        let version = (self.ask)(path);
        locked(&self.versions).insert(path.to_owned(), version.clone());
        version
    }

    fn seen(&self, name: String, path: PathBuf, written: &str) -> Result<SeenFile, SourceProblem> {
        let (stat, digest, young) = self.digest(&path).map_err(|error| unreadable(written, &error))?;
        Ok(SeenFile { name, path, stat, digest: Some(digest), young })
    }

    /// Returns the metadata and digest of a file that did not change while it was read, and whether it is so recent
    /// that it may change unnoticed.
    fn digest(&self, file: &Path) -> std::io::Result<(FileStat, Digest, bool)> {
        // Without the lock: most files did not change since the last run.
        if let Some((seen, digest)) = self.remembered(file)? {
            return Ok((seen, digest, false));
        }
        // The map is locked for the look-up only: hashing one file does not delay another.
        let turn = Arc::clone(locked(&self.hashing).entry(file.to_owned()).or_default());
        let alone = locked(&turn);
        let hashed = self.hashed(file);
        // Whoever waits for this lock finds the digest remembered, unless the file is too recent.
        drop(alone);
        locked(&self.hashing).remove(file);
        hashed
    }

    /// Hashes a file, unless another thread has just done so.
    fn hashed(&self, file: &Path) -> std::io::Result<(FileStat, Digest, bool)> {
        for _ in 0..TRIES {
            if let Some((seen, digest)) = self.remembered(file)? {
                return Ok((seen, digest, false));
            }
            let seen = settled(file)?;
            let digest = hash_reader(Stoppable { bytes: open_regular(file)?, stopped: &*self.stopped })?;
            // It changed while it was read: the digest is of no version of the file.
            if FileStat::of(file)? != seen {
                continue;
            }
            let young = seen.age().is_none_or(|age| age <= RACY);
            // A recent file may change again under the same time stamp.
            if !young && self.lasts(&seen) {
                locked(&self.known).insert(file.to_owned(), StatRecord::new(seen, digest));
                // A run that learned nothing does not write the file of digests.
                self.changed.store(true, Ordering::Relaxed);
            }
            return Ok((seen, digest, young));
        }
        Err(std::io::ErrorKind::ResourceBusy.into())
    }

    /// Returns the metadata and digest of a file that did not change since it was hashed.
    fn remembered(&self, file: &Path) -> std::io::Result<Option<(FileStat, Digest)>> {
        let seen = settled(file)?;
        let known = locked(&self.known).get(file).filter(|known| known.stat() == seen).map(|known| known.digest);
        match known {
            Some(digest) if self.lasts(&seen) => Ok(Some((seen, digest))),
            _ => Ok(None),
        }
    }

    /// Returns whether a digest of a file on that device may be remembered.
    fn lasts(&self, seen: &FileStat) -> bool {
        !self.read_only.contains(&numbers(seen.device))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a file's metadata once its time stamp is old enough for another change to get a new stamp.
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

fn content(file: &SeenFile) -> String {
    file.digest.map(|digest| digest.hex()).unwrap_or_default()
}

fn identity(name: &str, content: &str) -> SourceIdentity {
    SourceIdentity { name: name.to_owned(), content: content.to_owned(), place: 0 }
}

/// Returns `major:minor` of a device, as Linux packs them.
fn numbers(device: u64) -> String {
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & 0xffff_f000);
    let minor = (device & 0xff) | ((device >> 12) & 0xffff_ff00);
    format!("{major}:{minor}")
}

/// Returns the devices of all file systems that are read-only as a whole, not only where mounted. In a line of
/// `/proc/self/mountinfo`, the third field is the device, and the third field after ` - ` has the file system's own
/// options.
fn read_only_devices(mounts: &str) -> BTreeSet<String> {
    let mut devices = BTreeSet::new();
    for line in mounts.lines() {
        let Some((mount, system)) = line.split_once(" - ") else { continue };
        let options = system.split_whitespace().nth(2).unwrap_or_default();
        if options.split(',').any(|option| option == "ro") {
            devices.extend(mount.split_whitespace().nth(2).map(str::to_owned));
        }
    }
    devices
}

fn unreadable(written: &str, error: &std::io::Error) -> SourceProblem {
    match error.kind() {
        std::io::ErrorKind::TimedOut => SourceProblem::Stopped,
        std::io::ErrorKind::ResourceBusy => SourceProblem::Changing(written.to_owned()),
        _ => SourceProblem::Unreadable { path: written.to_owned(), reason: error.to_string() },
    }
}

/// A reader that fails once the run is stopped.
struct Stoppable<'a, R> {
    bytes: R,
    stopped: &'a (dyn Fn() -> bool + Send + Sync),
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if (self.stopped)() {
            // Not `Interrupted`: readers retry after that.
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut));
        }
        self.bytes.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn identities(folder: &Path, sources: &[Source]) -> Vec<SourceIdentity> {
        SourceDigests::new(BTreeMap::new(), |_| None).identify(sources, folder).unwrap().0
    }

    #[test]
    fn a_file_that_moves_from_one_source_to_another_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a/x", "1");
        write(folder.path(), "b/y", "2");
        for sources in
            [["a", "b"].map(|path| Source::Path(path.into())), ["a", "b"].map(|path| Source::Argument(path.into()))]
        {
            let before = identities(folder.path(), &sources);
            fs::rename(folder.path().join("b/y"), folder.path().join("a/y")).unwrap();
            assert_ne!(before, identities(folder.path(), &sources), "{sources:?}");
            fs::rename(folder.path().join("a/y"), folder.path().join("b/y")).unwrap();
            assert_eq!(before, identities(folder.path(), &sources), "{sources:?}");
        }
    }

    #[test]
    fn a_file_that_takes_long_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "long", "1");
        write(folder.path(), "short", "2");
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let (reading, begun) = std::sync::mpsc::channel();
        let held = Mutex::new(held);
        let digests = SourceDigests::new(BTreeMap::new(), |_| None).until(move || {
            if std::thread::current().name() == Some("long") {
                reading.send(()).unwrap();
                locked(&held).recv().ok();
            }
            false
        });
        std::thread::scope(|scope| {
            let long = std::thread::Builder::new().name("long".to_owned());
            let long = long.spawn_scoped(scope, || digests.digest(&folder.path().join("long")).unwrap()).unwrap();
            begun.recv().unwrap();
            digests.digest(&folder.path().join("short")).unwrap();
            drop(hold);
            long.join().unwrap();
        });
        assert!(locked(&digests.hashing).is_empty());
    }

    #[test]
    fn digests_of_another_device_and_of_read_only_images_are_not_taken_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a", "1");
        let path = folder.path().join("a");
        let stat = FileStat::of(&path).unwrap();
        let remembered = hash_reader(&b"remembered"[..]).unwrap();
        let digest = |stat, read_only: &[String]| {
            let known = BTreeMap::from([(path.clone(), StatRecord::new(stat, remembered))]);
            let mut digests = SourceDigests::new(known, |_| None);
            digests.read_only = read_only.iter().cloned().collect();
            digests.digest(&path).unwrap().1
        };
        assert_eq!(digest(stat, &[]), remembered);
        assert_ne!(digest(FileStat { device: stat.device + 1, ..stat }, &[]), remembered);
        assert_ne!(digest(stat, &[numbers(stat.device)]), remembered);
    }

    #[test]
    fn images_are_found_among_the_mounts() {
        let mounts = "36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            40 35 7:3 / /img ro,relatime - squashfs /dev/loop3 ro,errors=continue\n\
            41 35 98:0 /data /view ro - ext3 /dev/root rw\nodd line\n";
        assert_eq!(read_only_devices(mounts), BTreeSet::from(["7:3".to_owned()]));
        assert_eq!((numbers(0x703), numbers(0x0010_0301)), ("7:3".to_owned(), "3:257".to_owned()));
    }
}
