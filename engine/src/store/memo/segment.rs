//! Segments: append-only logs of keyed records, one per process, so that no paid row is lost and runs need no locks.
//!
//! A record is `mark (4 bytes) · length (u32) · BLAKE3 of the rest, 8 bytes · stamp (u64) · key (32 bytes) · payload`,
//! little-endian. Of two records of a key, the one with the higher stamp is newer. A stamp is in nanoseconds since
//! 1970, or higher if a clock was set back.
//!
//! A damaged record affects only itself: reading resumes at the next mark that starts a whole record. Earlier formats
//! have no stamp. The first format has no mark either; its records are read where they follow a whole record.

use std::fs::{self, File, TryLockError};
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::fingerprint::{Digest, hash_bytes};
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::nofollow;

/// First bytes of a record. As the length of a record of the first format, they would mean 4 GB.
const MARK: [u8; 4] = *b"srm\xc3";
/// Mark of records without a stamp.
const UNSTAMPED: [u8; 4] = *b"srm\xff";
/// Bytes before a record's payload: mark, length, sum, stamp, key.
pub(super) const HEADER: usize = MARK.len() + 4 + SUM + STAMP + KEY;
/// Bytes before the payload in the first format.
const UNMARKED: usize = 4 + SUM + KEY;
const SUM: usize = 8;
const STAMP: usize = 8;
const KEY: usize = 32;
/// Limit of records of the first format: a greater number is a damaged mark.
const LONGEST: u32 = 1 << 30;
/// Limit of a last record whose damaged length can be reconstructed.
const LAST: u64 = 1 << 26;
/// Without file locks, a segment that was not written to for this long counts as abandoned.
const ABANDONED: Duration = Duration::from_hours(24);
/// Limit of open segment files; further segments are read into memory.
const HELD: usize = 128;
/// Attempts to list a folder that another process merges meanwhile.
const LISTINGS: usize = 50;

/// Encodes a record.
pub(crate) fn record(stamp: u64, key: &Digest, payload: &[u8]) -> Result<Vec<u8>, StoreError> {
    let length = u32::try_from(payload.len())?;
    let mut record = Vec::with_capacity(HEADER + payload.len());
    record.extend(MARK);
    record.extend(length.to_le_bytes());
    record.extend([0; SUM]);
    record.extend(stamp.to_le_bytes());
    record.extend(key.as_bytes());
    record.extend(payload);
    let summed = MARK.len() + 4 + SUM;
    let sum = checksum(&record[summed..]);
    record[summed - SUM..summed].copy_from_slice(&sum);
    Ok(record)
}

fn checksum(summed: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    sum.copy_from_slice(&hash_bytes(summed).as_bytes()[..SUM]);
    sum
}

/// A record that was read: stamp (0 if it has none), key, payload, and the payload's position in the file.
pub(crate) struct Record<'r> {
    pub(crate) stamp: u64,
    pub(crate) key: Digest,
    pub(crate) start: u64,
    pub(crate) payload: &'r [u8],
}

/// Result of reading a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// End of the last whole record.
    pub(crate) end: u64,
    /// Number of whole records, and their bytes.
    pub(crate) records: u64,
    bytes: u64,
    /// Damaged bytes between whole records, and the number of such gaps.
    pub(super) lost_bytes: u64,
    pub(crate) gaps: u64,
}

impl Scanned {
    /// Estimates the number of lost records: at least one per gap, more if a gap fits several records of the usual
    /// size.
    pub(super) fn lost_records(&self) -> u64 {
        let usual = self.bytes.checked_div(self.records).unwrap_or(0);
        self.lost_bytes.checked_div(usual).unwrap_or(0).max(self.gaps)
    }

    fn lose(&mut self, bytes: u64) {
        self.gaps += u64::from(bytes > 0);
        self.lost_bytes += bytes;
    }
}

/// Reads all whole records in order, from `from`, where a record ends. A truncated record at the end of the file is not
/// lost: it was never completed.
pub(crate) fn scan(source: impl Read + Seek, from: u64, length: u64, mut each: impl FnMut(&Record<'_>)) -> Scanned {
    let (mut done, mut at, mut record) = (Scanned { end: from, ..Scanned::default() }, from, Vec::new());
    if from >= length {
        return done;
    }
    let mut reader = BufReader::with_capacity(1 << 18, source);
    if from > 0 && reader.seek(SeekFrom::Start(from)).is_err() {
        return done;
    }
    // Another process may append meanwhile: bytes beyond `length` are ignored.
    while at < length {
        match read_record(&mut reader, length - at, &mut record).unwrap_or(Spot::Wrong { damaged: false }) {
            Spot::Whole(header) => {
                done.lose(at - done.end);
                let key = Digest::from_bytes(record[header - KEY..header].try_into().unwrap_or([0; KEY]));
                let stamp = record[header - KEY - STAMP..header - KEY].try_into().map_or(0, u64::from_le_bytes);
                let stamp = if header == HEADER { stamp } else { 0 };
                each(&Record { stamp, key, start: at + header as u64, payload: &record[header..] });
                at += record.len() as u64;
                done.end = at;
                done.records += 1;
                done.bytes += record.len() as u64;
            }
            Spot::Wrong { damaged } => {
                let Some(mark) = next_mark(&mut reader, at + 1).filter(|mark| *mark < length) else {
                    done.lose(if damaged { length - done.end } else { 0 });
                    return done;
                };
                at = mark;
            }
        }
    }
    done
}

/// Reads like [`scan`] from memory.
pub(crate) fn scan_bytes(bytes: &[u8], each: impl FnMut(&Record<'_>)) -> Scanned {
    scan(Cursor::new(bytes), 0, bytes.len() as u64, each)
}

/// What stands at a position of a segment.
enum Spot {
    /// A whole record; the number of bytes before its payload.
    Whole(usize),
    /// No record. `damaged`: not even the beginning of an unfinished one.
    Wrong { damaged: bool },
}

/// Returns the number of bytes up to the end of the last whole record.
pub(crate) fn whole_records(bytes: &[u8]) -> usize {
    scan_bytes(bytes, |_| {}).end as usize
}

fn read_record(reader: &mut impl Read, left: u64, record: &mut Vec<u8>) -> Option<Spot> {
    record.resize(UNMARKED, 0);
    reader.read_exact(record).ok()?;
    let (header, at) = match <[u8; 4]>::try_from(&record[..MARK.len()]).ok()? {
        MARK => (HEADER, MARK.len() + 4),
        UNSTAMPED => (MARK.len() + UNMARKED, MARK.len() + 4),
        _ => (UNMARKED, 4),
    };
    record.resize(header, 0);
    reader.read_exact(&mut record[UNMARKED..]).ok()?;
    let said = u32::from_le_bytes(record[at - 4..at].try_into().ok()?);
    let most = left.checked_sub(header as u64)?;
    // Too long for the file: either truncated, or the length is damaged.
    let length = u64::from(said).min(most);
    if u64::from(said) > most && (header == UNMARKED || most > LAST) {
        return Some(Spot::Wrong { damaged: header == UNMARKED && said > LONGEST });
    }
    record.resize(header + length as usize, 0);
    reader.read_exact(&mut record[header..]).ok()?;
    let right = checksum(&record[at + SUM..]) == record[at..at + SUM];
    Some(if right { Spot::Whole(header) } else { Spot::Wrong { damaged: u64::from(said) <= most && length == most } })
}

/// Moves the reader to the next mark at or after `from` and returns its position.
fn next_mark(reader: &mut BufReader<impl Read + Seek>, from: u64) -> Option<u64> {
    reader.seek(SeekFrom::Start(from)).ok()?;
    let (mut at, mut window) = (from, Vec::new());
    loop {
        let before = window.len();
        reader.by_ref().take(1 << 18).read_to_end(&mut window).ok()?;
        // Both marks differ in their last byte alone.
        for start in memchr::memmem::find_iter(&window, &MARK[..3]) {
            if matches!(window.get(start + 3), Some(0xc3 | 0xff)) {
                let mark = at + start as u64;
                reader.seek(SeekFrom::Start(mark)).ok()?;
                return Some(mark);
            }
        }
        if window.len() == before {
            return None;
        }
        // A mark may span two windows.
        let keep = window.len().saturating_sub(MARK.len() - 1);
        at += keep as u64;
        window.drain(..keep);
    }
}

/// Lists the segments of a folder by name, including those that a process is about to merge; none if the folder does not
/// exist.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = if_there(fs::read_dir(folder)).context("read", folder)?;
    let mut paths: Vec<PathBuf> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rows" || extension == "merging"));
    paths.sort();
    Ok(paths)
}

/// A segment open for reading.
#[derive(Debug)]
pub(crate) enum Source {
    File(File),
    /// Of very many segments, only some files are held open.
    Bytes(Vec<u8>),
}

impl Source {
    pub(crate) fn open(path: &Path, place: usize) -> std::io::Result<Self> {
        if place < HELD { Ok(Self::File(File::open(path)?)) } else { Ok(Self::Bytes(fs::read(path)?)) }
    }

    /// Reads all whole records in order, from `from`, where a record ends.
    pub(crate) fn scan(&self, from: u64, each: impl FnMut(&Record<'_>)) -> std::io::Result<Scanned> {
        Ok(match self {
            Self::File(file) => scan(file, from, file.metadata()?.len(), each),
            Self::Bytes(bytes) => scan(Cursor::new(bytes), from, bytes.len() as u64, each),
        })
    }

    /// Returns bytes of the segment.
    pub(super) fn read_at(&self, start: u64, length: usize) -> Option<Vec<u8>> {
        match self {
            Self::File(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, start).ok()?;
                Some(bytes)
            }
            Self::Bytes(bytes) => Some(bytes.get(start as usize..)?.get(..length)?.to_vec()),
        }
    }
}

/// Opens all segments of a folder. If another process merges some meanwhile, the folder is listed again, so that no
/// record is missed.
pub(super) fn open_all(folder: &Path) -> Result<Vec<(PathBuf, Source)>, StoreError> {
    'listings: for _ in 0..LISTINGS {
        let paths = list(folder)?;
        let mut sources = Vec::with_capacity(paths.len());
        for (index, path) in paths.iter().enumerate() {
            match if_there(Source::open(path, index)).context("read", path)? {
                Some(source) => sources.push((path.clone(), source)),
                None => continue 'listings,
            }
        }
        // Listed again: records of a segment that was renamed before it was opened would be missing.
        if is_untouched(&paths, &list(folder)?) {
            return Ok(sources);
        }
    }
    Err(StoreError::KeepsChanging(folder.to_owned()))
}

/// Whether nothing was merged between two listings. New segments do not count.
fn is_untouched(before: &[PathBuf], after: &[PathBuf]) -> bool {
    for path in after {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // Merged segments are named by their content, new ones by their process.
        let is_merged = !name.contains('-') || path.extension().is_some_and(|extension| extension == "merging");
        if is_merged && !before.contains(path) {
            return false;
        }
    }
    before.iter().all(|path| after.contains(path))
}

/// The segment that this process writes, created with its first record.
#[derive(Debug, Default)]
pub(super) struct OwnSegment {
    folder: PathBuf,
    name: String,
    open: Option<Open>,
}

/// A file being written.
#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
    inode: u64,
    length: u64,
}

impl OwnSegment {
    /// Creates a segment; `name` must be unique on this machine.
    pub(crate) fn new(folder: &Path, name: String) -> Self {
        Self { folder: folder.to_owned(), name, open: None }
    }

    /// Appends a record, which then survives the death of the process. Returns the position of its payload in the file
    /// at [`Self::path`].
    pub(crate) fn append(&mut self, stamp: u64, key: &Digest, payload: &[u8]) -> Result<u64, StoreError> {
        let record = record(stamp, key, payload)?;
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                empty => empty.insert(Self::create(&self.folder, &self.name)?),
            };
            let written = open.file.write_all(&record).context("write", &open.path);
            // Looked at after the write: without file locks, another process may have merged the segment before it.
            let in_place = fs::metadata(&open.path).is_ok_and(|metadata| metadata.ino() == open.inode);
            if in_place && written.is_ok() {
                open.length += record.len() as u64;
                return Ok(open.length - payload.len() as u64);
            }
            // If another process merged the segment, only this record may be missing there; after a failed write, half
            // a record is damage. Either way, continue in a new segment.
            self.open = None;
            written?;
        }
    }

    fn create(folder: &Path, name: &str) -> Result<Open, StoreError> {
        nofollow::create_folder(folder).context("create", folder)?;
        let mut serial = 0_u64;
        loop {
            let path = folder.join(format!("{name}-{serial}.rows"));
            match nofollow::create_new(&path) {
                Ok(file) => {
                    // Held while the process lives: shows others that the segment still grows. One that merges it before
                    // it is locked is noticed after the first record.
                    if let Err(error) = file.try_lock() {
                        tracing::debug!("cannot lock {}: {error}", path.display());
                    }
                    let inode = file.metadata().map_or(0, |metadata| metadata.ino());
                    return Ok(Open { file, path, inode, length: 0 });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => serial += 1,
                Err(error) => return Err(error).context("create", &path),
            }
        }
    }

    /// Returns the file once it exists.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.open.as_ref().map(|open| open.path.as_path())
    }

    /// Flushes to disk.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let Some(open) = &self.open else { return Ok(()) };
        open.file.sync_data().context("flush", &open.path)
    }
}

/// Returns the segment's file if no running process writes to it. While it is held, no other process considers it
/// abandoned.
pub(crate) fn abandoned(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        // Without file locks, only age decides.
        Err(TryLockError::Error(_)) => {
            let age = SystemTime::now().duration_since(file.metadata().ok()?.modified().ok()?).ok()?;
            (age > ABANDONED).then_some(file)
        }
    }
}
