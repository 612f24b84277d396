//! Results of single external rows: what is paid for is remembered at once and never paid for again. They lie in
//! segments (see `segment`): of this store's processes, of merged ones (`compact`), of imports.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::collect::names_below;
use super::error::StoreError;
use super::layout::Store;
use super::row_codec::{Head, RowCodec};
use super::segment::{OwnSegment, Source, open_all, record, scan};
use crate::fingerprint::{Digest, RowKey};
use crate::operator::{RowOutput, Usage};

/// Extensions of the files that rows are read from: segments, and those that a process is about to merge.
pub(super) const SEGMENTS: [&str; 2] = ["rows", "merging"];

/// Rows that are looked at to say what rows cost.
const SAMPLE: usize = 2000;

/// What is kept for a row.
#[derive(Clone, Debug)]
pub struct MemoEntry {
    /// Rows by output port.
    pub output: RowOutput,
}

/// File, where the payload begins there, and its length.
type Place = (usize, u64, usize);

/// The memo of one node identity.
#[derive(Debug)]
pub struct Memo {
    folder: PathBuf,
    known: BTreeMap<RowKey, Vec<Place>>,
    files: Vec<Source>,
    own: OwnSegment,
    codec: Mutex<RowCodec>,
    /// Where what is appended goes up, if the store is shared.
    shared: Option<Store>,
    /// The segment of which the store knows.
    watched: Option<PathBuf>,
}

impl Memo {
    /// Reads what is known under `base`.
    ///
    /// # Errors
    /// When the folder is there and cannot be read.
    pub fn open(store: &Store, base: &Digest) -> Result<Self, StoreError> {
        store.fetch_memo(base)?;
        let mut memo = Self::empty(store, base);
        memo.load()?;
        Ok(memo)
    }

    /// Knows nothing, but keeps what comes: the folder is made with the first record.
    #[must_use]
    pub fn empty(store: &Store, base: &Digest) -> Self {
        let folder = store.memo_folder(base);
        let own = OwnSegment::new(&folder, store.process_name(), "rows");
        let shared = store.is_shared().then(|| store.clone());
        let (known, files, codec, watched) = (BTreeMap::new(), Vec::new(), Mutex::default(), None);
        Self { folder, known, files, own, codec, shared, watched }
    }

    fn load(&mut self) -> Result<(), StoreError> {
        for (path, source) in open_all(&self.folder, &SEGMENTS)? {
            let (place, known) = (self.files.len(), &mut self.known);
            let read = source.scan(|found| {
                known.entry(RowKey(found.key)).or_default().push((place, found.start, found.payload().len()));
            });
            read.map_err(StoreError::io("read", &path))?;
            self.files.push(source);
        }
        Ok(())
    }

    /// How many rows are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// How many rows were looked at, of those that are known, and what they cost; `None` when none cost anything.
    #[must_use]
    pub fn history(&self) -> Option<(u64, Usage)> {
        let step = self.known.len().div_ceil(SAMPLE).max(1);
        let (mut rows, mut usage) = (0, Usage::default());
        for key in self.known.keys().step_by(step) {
            if let Some(head) = self.payloads(key).find_map(|payload| Some(Head::read(&payload)?.0)) {
                rows += 1;
                usage += head.usage;
            }
        }
        (usage.calls > 0).then_some((rows, usage))
    }

    /// Is nothing known?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Is that row known?
    #[must_use]
    pub fn contains(&self, key: &RowKey) -> bool {
        self.known.contains_key(key)
    }

    /// The kept result of a row. One that cannot be read counts as unknown.
    #[must_use]
    pub fn get(&self, key: &RowKey) -> Option<MemoEntry> {
        let mut codec = self.codec.lock().unwrap_or_else(PoisonError::into_inner);
        self.payloads(key).find_map(|payload| Some(MemoEntry { output: codec.decode(payload)? }))
    }

    /// All that is kept under a key.
    pub(super) fn payloads(&self, key: &RowKey) -> impl Iterator<Item = Vec<u8>> {
        let places = self.known.get(key).into_iter().flatten();
        places.filter_map(|(file, start, length)| self.files[*file].read_at(*start, *length))
    }

    /// Keeps the result of a row: it is on its way to disk when this returns, and survives the death of the process.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&mut self, key: &RowKey, output: &RowOutput) -> Result<(), StoreError> {
        let codec = self.codec.get_mut().unwrap_or_else(PoisonError::into_inner);
        let payload = codec.encode(output).map_err(StoreError::Location)?;
        self.keep(key, &payload)
    }

    /// Keeps bytes under a key.
    pub(super) fn keep(&mut self, key: &RowKey, payload: &[u8]) -> Result<(), StoreError> {
        self.own.append(&key.0, payload)?;
        if let (Some(store), Some(path)) = (&self.shared, self.own.path())
            && self.watched.as_deref() != Some(path)
        {
            store.watch_segment(path);
            self.watched = Some(path.to_owned());
        }
        Ok(())
    }

    /// Flushes to disk, and to the shared store if it is one.
    ///
    /// # Errors
    /// When the disk or the store refuses.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.own.sync()?;
        self.share()
    }

    /// Sends what was kept to the shared store, if it is one.
    pub(super) fn share(&self) -> Result<(), StoreError> {
        let own = self.shared.as_ref().zip(self.own.path());
        own.map_or(Ok(()), |(store, path)| store.send_segment(path))
    }
}

impl Store {
    /// Identities of nodes whose rows are remembered, sorted.
    #[must_use]
    pub fn memo_bases(&self) -> Vec<Digest> {
        let found = names_below(&self.root().join("memo")).into_iter();
        found.filter_map(|(name, _)| Digest::parse(&name)).collect()
    }

    /// All rows that are remembered under `base` as one segment under `tmp/`, each once, sorted by key: the same rows give
    /// the same bytes. `None` when there are none (blocks speak of artifacts of this store and are left out). Whoever asks
    /// removes it.
    ///
    /// # Errors
    /// When the memo cannot be read or the segment not written.
    pub fn merge_memo(&self, base: &Digest) -> Result<Option<(PathBuf, usize)>, StoreError> {
        let memo = Memo::open(self, base)?;
        let mut codec = RowCodec::default();
        let path = self.temporary();
        let mut file = BufWriter::new(File::create(&path).map_err(StoreError::io("create", &path))?);
        let mut rows = 0;
        for key in memo.known.keys() {
            if let Some(payload) = memo.payloads(key).find(|payload| codec.decode(payload.clone()).is_some()) {
                file.write_all(&record(&key.0, &payload)?).map_err(StoreError::io("write", &path))?;
                rows += 1;
            }
        }
        file.flush().map_err(StoreError::io("write", &path))?;
        if rows == 0 {
            super::segment::remove(&path);
        }
        Ok((rows > 0).then_some((path, rows)))
    }
}

/// The keys of a segment; `None` when any byte of it is not what was written.
pub(super) fn segment_keys(bytes: &[u8]) -> Option<Vec<RowKey>> {
    let (mut keys, mut rows, mut codec) = (Vec::new(), 0, RowCodec::default());
    let end = scan(bytes, bytes.len() as u64, |found| {
        rows += usize::from(codec.decode(found.payload().to_vec()).is_some());
        keys.push(RowKey(found.key));
    });
    (end == bytes.len() as u64 && rows == keys.len()).then_some(keys)
}

/// Bytes of the whole records that these begin with.
pub(super) fn whole_records(bytes: &[u8]) -> usize {
    scan(bytes, bytes.len() as u64, |_| {}) as usize
}
