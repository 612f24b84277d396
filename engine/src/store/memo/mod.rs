//! Memos: caches of single rows of external nodes, written as soon as a row is paid for.
//!
//! Rows are stored in segments (see `segment`): of this store's processes, of merges (`compact`), of imports. A row
//! that is stored is never paid for again.

pub(super) mod call_cache;
pub(super) mod compact;
pub(super) mod floor;
pub(super) mod in_flight;
pub(super) mod map_blocks;
pub(super) mod pieces;
pub(super) mod row_codec;
pub(super) mod segment;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use self::row_codec::{RowCodec, head};
use self::segment::{OwnSegment, Scanned, Source, list, open_all, record, scan_bytes};
use super::error::{IoContext, StoreError};
use super::files::{clear, if_there, names_below};
use super::layout::Store;
use super::nofollow;
use crate::endpoint::Usage;
use crate::fingerprint::{Digest, RowKey};
use crate::operator::RowOutput;

/// Rows sampled to estimate the cost of a row.
const SAMPLE: usize = 2000;

/// File systems record times in steps of some milliseconds: two changes within one step look like one.
const SETTLED: Duration = Duration::from_millis(100);

/// The position of a payload.
#[derive(Clone, Copy, Debug)]
struct Position {
    file: u32,
    length: u32,
    start: u64,
    stamp: u64,
}

/// Positions of the known records of each key.
#[derive(Debug, Default)]
struct Index {
    /// The newest payload of each key.
    known: BTreeMap<RowKey, Position>,
    /// Older payloads of keys that have several.
    older: BTreeMap<RowKey, Vec<Position>>,
    /// The newest stamp (0 if empty).
    newest: u64,
}

impl Index {
    fn learn(&mut self, key: RowKey, position: Position) {
        self.newest = self.newest.max(position.stamp);
        match self.known.entry(key) {
            Entry::Vacant(entry) => drop(entry.insert(position)),
            Entry::Occupied(mut newest) => {
                let older = if newest.get().stamp < position.stamp { newest.insert(position) } else { position };
                let others = self.older.entry(key).or_default();
                let at = others.partition_point(|other| other.stamp >= older.stamp);
                others.insert(at, older);
            }
        }
    }

    /// Learns the records of a file from `from` on, where a record ends.
    fn read(&mut self, source: &Source, file: u32, from: u64) -> std::io::Result<Scanned> {
        source.scan(from, |found| {
            let length = found.payload.len() as u32;
            self.learn(RowKey(found.key), Position { file, length, start: found.start, stamp: found.stamp });
        })
    }

    /// Returns all positions of a key, newest first.
    fn positions(&self, key: &RowKey) -> impl Iterator<Item = &Position> {
        self.known.get(key).into_iter().chain(self.older.get(key).into_iter().flatten())
    }
}

/// Damage found in a memo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoDamage {
    /// The damaged segments.
    pub segments: Vec<PathBuf>,
    /// Number of lost records, as far as known.
    pub lost: u64,
    /// Number of intact records in all segments.
    pub whole: u64,
}

impl MemoDamage {
    /// Returns the lost share of all records.
    pub fn share(&self) -> f64 {
        self.lost as f64 / (self.lost + self.whole).max(1) as f64
    }

    /// Describes the damage; `what` is `rows` or `answers`.
    pub fn text(&self, what: &str) -> String {
        let (lost, all) = (self.lost, self.lost + self.whole);
        let files: Vec<String> = self.segments.iter().map(|path| path.display().to_string()).collect();
        format!("{lost} of {all} cached {what} are damaged in {}", files.join(", "))
    }
}

/// The memo of one node identity.
#[derive(Debug, Default)]
pub struct Memo {
    folder: PathBuf,
    index: Index,
    files: Vec<Source>,
    /// Segments read so far: their file index and how far they were read.
    read: BTreeMap<PathBuf, (u32, u64)>,
    /// Modification time of the folder, once it is old enough for the next change to be visible.
    listed: Option<SystemTime>,
    damage: MemoDamage,
    /// Records with an earlier stamp do not count.
    since: u64,
    own: OwnSegment,
    /// The segment being written, and its file index.
    own_file: Option<(PathBuf, u32)>,
    codec: Mutex<RowCodec>,
    /// The shared store that receives appended records, if any.
    shared: Option<Store>,
}

impl Memo {
    /// Reads everything stored under `base`.
    ///
    /// # Errors
    /// Fails if the folder exists and cannot be read.
    pub fn open(store: &Store, base: &Digest) -> Result<Self, StoreError> {
        store.fetch_memo(base)?;
        let mut memo = Self::empty(store, base);
        for (path, source) in open_all(&memo.folder)? {
            let file = memo.add_file(source);
            let scanned = memo.index.read(&memo.files[file as usize], file, 0).context("read", &path)?;
            memo.damage.whole += scanned.records;
            if scanned.gaps > 0 {
                memo.damage.lost += scanned.lost_records();
                memo.damage.segments.push(path.clone());
            }
            // To the last whole record: the rest may be one that another process is just writing.
            memo.read.insert(path, (file, scanned.end));
        }
        Ok(memo)
    }

    /// Starts empty but stores new records. The folder is created with the first one.
    pub fn empty(store: &Store, base: &Digest) -> Self {
        let folder = store.memo_folder(base);
        let own = OwnSegment::new(&folder, store.process_name());
        Self { folder, own, shared: store.is_shared().then(|| store.clone()), ..Self::default() }
    }

    /// Ignores records with an earlier stamp.
    #[must_use]
    pub fn since(self, since: u64) -> Self {
        Self { since, ..self }
    }

    /// Returns the newest stamp (0 if empty).
    pub(super) fn newest(&self) -> u64 {
        self.index.newest
    }

    /// Reads what other processes of this machine have added since.
    ///
    /// # Errors
    /// Fails if a segment cannot be read.
    pub(super) fn refresh(&mut self) -> Result<(), StoreError> {
        self.add_new_segments()?;
        for (path, (file, end)) in &mut self.read {
            *end = self.index.read(&self.files[*file as usize], *file, *end).context("read", path)?.end;
        }
        Ok(())
    }

    fn add_new_segments(&mut self) -> Result<(), StoreError> {
        // Its time is read before it is listed: what is added in between makes the next look list it again.
        let Ok(changed) = std::fs::metadata(&self.folder).and_then(|folder| folder.modified()) else { return Ok(()) };
        if self.listed == Some(changed) {
            return Ok(());
        }
        let settled = SystemTime::now().duration_since(changed).is_ok_and(|age| age > SETTLED);
        for path in list(&self.folder)? {
            if self.own.path() == Some(path.as_path()) || self.read.contains_key(&path) {
                continue;
            }
            // If it is gone, it was merged meanwhile; the next listing has its new name.
            let Some(source) = if_there(Source::open(&path, 0)).context("read", &path)? else { return Ok(()) };
            let file = self.add_file(source);
            self.read.insert(path, (file, 0));
        }
        self.listed = settled.then_some(changed);
        Ok(())
    }

    fn add_file(&mut self, source: Source) -> u32 {
        self.files.push(source);
        (self.files.len() - 1) as u32
    }

    /// Returns the damage in the files that were read.
    pub fn damage(&self) -> &MemoDamage {
        &self.damage
    }

    /// Returns the number of known rows that count.
    pub fn len(&self) -> usize {
        if self.since == 0 {
            return self.index.known.len();
        }
        self.index.known.values().filter(|position| position.stamp >= self.since).count()
    }

    /// Returns the number of sampled rows and their usage; `None` if none made calls.
    pub fn history(&self) -> Option<(u64, Usage)> {
        let step = self.index.known.len().div_ceil(SAMPLE).max(1);
        let (mut rows, mut all) = (0, Usage::default());
        for key in self.index.known.keys().step_by(step) {
            if let Some(usage) = self.payloads(key).find_map(|payload| usage(&payload)) {
                rows += 1;
                all += usage;
            }
        }
        if all.calls > 0 { Some((rows, all)) } else { None }
    }

    /// Returns the number of calls behind all stored records that count, failed attempts included. Reads every record.
    pub fn calls(&self) -> u64 {
        let payloads = self.index.known.keys().flat_map(|key| self.payloads(key));
        payloads.filter_map(|payload| usage(&payload)).map(|usage| usage.calls).sum()
    }

    /// Whether no row that counts is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the row is known.
    pub fn contains(&self, key: &RowKey) -> bool {
        self.index.known.get(key).is_some_and(|position| position.stamp >= self.since)
    }

    /// Returns the stored results of a row, normally one. An unreadable one counts as unknown.
    pub fn get(&self, key: &RowKey) -> impl Iterator<Item = RowOutput> {
        self.payloads(key).filter_map(|payload| {
            let mut codec = self.codec.lock().unwrap_or_else(PoisonError::into_inner);
            codec.decode(payload)
        })
    }

    /// Returns all payloads of a key, newest first.
    pub(super) fn payloads(&self, key: &RowKey) -> impl Iterator<Item = Vec<u8>> {
        self.stamped(key, self.since).map(|(_, payload)| payload)
    }

    /// Returns all payloads of a key since then with their stamps, newest first.
    pub(super) fn stamped(&self, key: &RowKey, since: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.index.positions(key).filter(move |position| position.stamp >= since).filter_map(|position| {
            let payload = self.files[position.file as usize].read_at(position.start, position.length as usize)?;
            Some((position.stamp, payload))
        })
    }

    /// Stores the result of a row. On return it survives the death of the process.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn put(&mut self, key: &RowKey, output: &RowOutput) -> Result<(), StoreError> {
        let codec = self.codec.get_mut().unwrap_or_else(PoisonError::into_inner);
        let payload = codec.encode(output)?;
        self.keep(key, &payload)
    }

    /// Stores bytes under a key.
    pub(super) fn keep(&mut self, key: &RowKey, payload: &[u8]) -> Result<(), StoreError> {
        self.keep_since(key, payload, self.since)
    }

    /// Stores bytes under a key with at least that stamp.
    pub(super) fn keep_since(&mut self, key: &RowKey, payload: &[u8], since: u64) -> Result<(), StoreError> {
        // Later than every known stamp and at least `since`, even if the clock was set back.
        let stamp = now().max(self.newest().saturating_add(1)).max(since);
        let start = self.own.append(stamp, &key.0, payload)?;
        let Some(path) = self.own.path().map(PathBuf::from) else { return Ok(()) };
        let file = match &self.own_file {
            Some((known, file)) if *known == path => *file,
            // A new segment: opened for reading, and registered for upload.
            _ => {
                let file = self.add_file(Source::open(&path, 0).context("read", &path)?);
                if let Some(store) = &self.shared {
                    store.watch_segment(&path);
                }
                self.own_file = Some((path, file));
                file
            }
        };
        self.index.learn(*key, Position { file, length: payload.len() as u32, start, stamp });
        Ok(())
    }

    /// Flushes to disk, and to the shared store if there is one.
    ///
    /// # Errors
    /// Fails if the disk or the shared store fails.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        // The disk first: rows that are paid for must not depend on whether the shared store can be reached.
        self.own.sync()?;
        self.share()
    }

    /// Uploads new records to the shared store, if there is one.
    pub(super) fn share(&self) -> Result<(), StoreError> {
        match (&self.shared, self.own.path()) {
            (Some(store), Some(path)) => store.send_segment(path),
            _ => Ok(()),
        }
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Reads the usage: rows and answers both start with a line of JSON that contains it.
fn usage(payload: &[u8]) -> Option<Usage> {
    head(payload).map(|(usage, _)| usage)
}

impl Store {
    /// Returns the node identities that have memos, sorted.
    pub fn memo_bases(&self) -> Vec<Digest> {
        names_below(&self.root().join("memo")).iter().filter_map(|(name, _)| Digest::parse(name)).collect()
    }

    /// Writes all rows or calls stored under `base` to one segment under `tmp/`, each once, sorted by key, so that
    /// equal rows give equal bytes. Returns `None` if there are none; blocks are omitted because they refer to
    /// artifacts of this store. The caller removes the file.
    ///
    /// # Errors
    /// Fails if the memo cannot be read or the segment cannot be written.
    pub fn merge_memo(&self, base: &Digest) -> Result<Option<(PathBuf, usize)>, StoreError> {
        let memo = Memo::open(self, base)?;
        let mut codec = RowCodec::default();
        let path = self.temporary();
        let mut file = BufWriter::new(nofollow::create(&path).context("create", &path)?);
        let mut rows = 0;
        for key in memo.index.known.keys() {
            let newest = memo.stamped(key, 0).find(|(_, payload)| is_whole(&mut codec, payload));
            if let Some((stamp, payload)) = newest {
                file.write_all(&record(stamp, &key.0, &payload)?).context("write", &path)?;
                rows += 1;
            }
        }
        file.flush().context("write", &path)?;
        if rows == 0 {
            clear(&path);
            return Ok(None);
        }
        Ok(Some((path, rows)))
    }
}

/// Whether a payload is a row's result or the answer to a call.
fn is_whole(codec: &mut RowCodec, payload: &[u8]) -> bool {
    codec.decode(payload.to_vec()).is_some() || usage(payload).is_some()
}

/// Returns the number of rows of a segment; `None` if any byte is damaged.
pub(super) fn segment_rows(bytes: &[u8]) -> Option<usize> {
    let (mut rows, mut codec) = (0, RowCodec::default());
    let scanned = scan_bytes(bytes, |found| rows += usize::from(is_whole(&mut codec, found.payload)));
    let is_intact = scanned.end == bytes.len() as u64 && scanned.gaps == 0 && rows as u64 == scanned.records;
    if is_intact { Some(rows) } else { None }
}
