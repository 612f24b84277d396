//! Segments: append-only logs of keyed records, one a process, so that nothing paid for is lost and concurrent runs need
//! no lock.
//!
//! A record is `length (u32) · BLAKE3 of key and payload, 8 bytes · key (32 bytes) · payload`, little-endian. A torn or
//! damaged record ends the reading of its file: what was written before it counts.

use std::fs::{self, File, TryLockError};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::error::StoreError;
use crate::fingerprint::{Digest, hash_bytes};

/// Bytes before the payload of a record.
pub(super) const HEADER: usize = 4 + 8 + 32;
/// Where the sum of key and payload begins and ends.
const SUM: std::ops::Range<usize> = 4..12;
/// Where locks do not work, a segment that nobody has written to for that long is nobody's.
const ABANDONED: Duration = Duration::from_hours(24);
/// Segments that are held open at once; more are read into memory.
const HELD: usize = 128;
/// How often a folder is listed again because another process tidied it meanwhile.
const LISTINGS: usize = 50;

/// The bytes of a record.
pub(super) fn record(key: &Digest, payload: &[u8]) -> Result<Vec<u8>, StoreError> {
    let length = u32::try_from(payload.len()).map_err(|error| StoreError::Location(error.to_string()))?;
    let mut record = Vec::with_capacity(HEADER + payload.len());
    record.extend(length.to_le_bytes());
    record.extend([0; 8]);
    record.extend(key.as_bytes());
    record.extend(payload);
    let sum = checksum(&record[SUM.end..]);
    record[SUM].copy_from_slice(&sum);
    Ok(record)
}

fn checksum(key_and_payload: &[u8]) -> [u8; 8] {
    let mut sum = [0; 8];
    sum.copy_from_slice(&hash_bytes(key_and_payload).as_bytes()[..8]);
    sum
}

/// One record as it is read: its key, where its payload begins in the file, and all of its bytes.
pub(super) struct Found<'r> {
    pub(super) key: Digest,
    pub(super) start: u64,
    pub(super) record: &'r [u8],
}

impl Found<'_> {
    pub(super) fn payload(&self) -> &[u8] {
        &self.record[HEADER..]
    }
}

/// Reads all whole records in order; gives the place where they end.
pub(super) fn scan(source: impl Read, length: u64, mut each: impl FnMut(&Found<'_>)) -> u64 {
    let mut reader = BufReader::with_capacity(1 << 18, source);
    let (mut at, mut record) = (0, Vec::new());
    while next(&mut reader, length - at, &mut record).is_some() {
        let key = Digest::from_bytes(record[SUM.end..HEADER].try_into().unwrap_or([0; 32]));
        each(&Found { key, start: at + HEADER as u64, record: &record });
        at += record.len() as u64;
    }
    at
}

/// The next record, if it is whole and right.
fn next(reader: &mut impl Read, left: u64, record: &mut Vec<u8>) -> Option<()> {
    record.resize(HEADER, 0);
    reader.read_exact(record).ok()?;
    let length = u32::from_le_bytes(record[..SUM.start].try_into().ok()?) as usize;
    if (HEADER + length) as u64 > left {
        return None;
    }
    record.resize(HEADER + length, 0);
    reader.read_exact(&mut record[HEADER..]).ok()?;
    (checksum(&record[SUM.end..]) == record[SUM]).then_some(())
}

/// Files of a folder with one of these extensions, by name; none where there is no folder.
pub(super) fn list(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("read", folder)(error)),
    };
    let fits = |path: &PathBuf| path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted));
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(fits).collect();
    paths.sort();
    Ok(paths)
}

/// A segment that is read.
#[derive(Debug)]
pub(super) enum Source {
    File(File),
    /// Of very many segments, only some are held open.
    Bytes(Vec<u8>),
}

impl Source {
    fn open(path: &Path, place: usize) -> std::io::Result<Self> {
        if place < HELD { Ok(Self::File(File::open(path)?)) } else { Ok(Self::Bytes(fs::read(path)?)) }
    }

    /// Reads all whole records in order.
    pub(super) fn scan(&self, each: impl FnMut(&Found<'_>)) -> std::io::Result<()> {
        match self {
            Self::File(file) => scan(file, file.metadata()?.len(), each),
            Self::Bytes(bytes) => scan(bytes.as_slice(), bytes.len() as u64, each),
        };
        Ok(())
    }

    /// Bytes of the segment.
    pub(super) fn read_at(&self, start: u64, length: usize) -> Option<Vec<u8>> {
        match self {
            Self::File(file) => read_at(file, start, length),
            Self::Bytes(bytes) => Some(bytes.get(start as usize..)?.get(..length)?.to_vec()),
        }
    }
}

/// Opens all files of a folder with one of these extensions. Another process may put several of them into one meanwhile:
/// then the folder is listed again, so that no record is missed.
pub(super) fn open_all(folder: &Path, extensions: &[&str]) -> Result<Vec<(PathBuf, Source)>, StoreError> {
    for _ in 0..LISTINGS {
        let paths = list(folder, extensions)?;
        let open = |(place, path): (usize, &PathBuf)| Source::open(path, place).map_err(|error| (path.clone(), error));
        match paths.iter().enumerate().map(open).collect::<Result<Vec<Source>, _>>() {
            Ok(sources) if is_untouched(&paths, &list(folder, extensions)?) => {
                return Ok(paths.into_iter().zip(sources).collect());
            }
            Err((path, error)) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("read", &path)(error));
            }
            _ => {}
        }
    }
    Err(StoreError::Location(format!("{} changes all the time", folder.display())))
}

/// Was nothing merged between two listings? Segments that were begun meanwhile do not count.
fn is_untouched(before: &[PathBuf], after: &[PathBuf]) -> bool {
    let begun = |path: &&PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // Merged ones are named by their content.
        name.contains('-') && path.extension().is_none_or(|extension| extension != "merging")
    };
    before.iter().all(|path| after.contains(path))
        && after.iter().filter(|path| !before.contains(path)).all(|path| begun(&path))
}

/// The segment that this process writes, made with its first record.
#[derive(Debug)]
pub(super) struct OwnSegment {
    folder: PathBuf,
    name: String,
    extension: &'static str,
    open: Option<(File, PathBuf, u64)>,
}

impl OwnSegment {
    /// `name` is one that no other process on this machine has.
    pub(super) fn new(folder: &Path, name: String, extension: &'static str) -> Self {
        Self { folder: folder.to_owned(), name, extension, open: None }
    }

    /// Adds a record: it is on its way to disk when this returns, and survives the death of the process.
    pub(super) fn append(&mut self, key: &Digest, payload: &[u8]) -> Result<(), StoreError> {
        let record = record(key, payload)?;
        loop {
            let (file, path, inode) = self.opened()?;
            let written = file.write_all(&record);
            let in_place = inode_of(fs::metadata(&*path)) == Some(*inode);
            let failed = written.err().map(|error| StoreError::io("write", path)(error));
            if in_place && failed.is_none() {
                return Ok(());
            }
            // Half a record would hide those after it; and a segment that another process took for a dead one's may lack
            // this record, not those before it. Either way, go on in a new one.
            self.open = None;
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    fn opened(&mut self) -> Result<&mut (File, PathBuf, u64), StoreError> {
        if self.open.is_none() {
            self.open = Some(self.create()?);
        }
        self.open.as_mut().ok_or_else(|| StoreError::Location("a segment is open and is not".to_owned()))
    }

    fn create(&self) -> Result<(File, PathBuf, u64), StoreError> {
        fs::create_dir_all(&self.folder).map_err(StoreError::io("create", &self.folder))?;
        let mut serial = 0_u64;
        loop {
            let path = self.folder.join(format!("{}-{serial}.{}", self.name, self.extension));
            match File::create_new(&path) {
                Ok(file) => {
                    // Held while the process lives: others see that the segment still grows.
                    if let Err(error) = file.try_lock() {
                        tracing::debug!("no lock on {}: {error}", path.display());
                    }
                    let inode = inode_of(file.metadata()).unwrap_or_default();
                    return Ok((file, path, inode));
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => serial += 1,
                Err(error) => return Err(StoreError::io("create", &path)(error)),
            }
        }
    }

    /// The file, once there is one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.open.as_ref().map(|(_, path, _)| path.as_path())
    }

    /// Flushes to disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        match &self.open {
            Some((file, path, _)) => file.sync_data().map_err(StoreError::io("flush", path)),
            None => Ok(()),
        }
    }

    /// Removes the file: nothing in it is needed any more.
    pub(super) fn remove(&mut self) {
        if let Some((_, path, _)) = self.open.take() {
            remove(&path);
        }
    }
}

/// Removes a file that holds nothing new. One that stays does no harm.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!("left {} behind: {error}", path.display());
    }
}

#[cfg(unix)]
fn inode_of(metadata: std::io::Result<fs::Metadata>) -> Option<u64> {
    std::os::unix::fs::MetadataExt::ino(&metadata.ok()?).into()
}

#[cfg(not(unix))]
fn inode_of(metadata: std::io::Result<fs::Metadata>) -> Option<u64> {
    metadata.ok().map(|_| 0)
}

/// The segment's file, if no living process writes to it. While it is held, nobody else takes it for abandoned.
pub(super) fn abandoned(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        // A file system without locks: only age tells.
        Err(TryLockError::Error(_)) => {
            let age = SystemTime::now().duration_since(file.metadata().ok()?.modified().ok()?).ok()?;
            (age > ABANDONED).then_some(file)
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, start: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, start).ok()?;
    Some(bytes)
}

#[cfg(not(unix))]
fn read_at(file: &File, start: u64, length: usize) -> Option<Vec<u8>> {
    use std::io::{Seek, SeekFrom};
    let mut file = file.try_clone().ok()?;
    let mut bytes = vec![0; length];
    file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut bytes)).ok()?;
    Some(bytes)
}
