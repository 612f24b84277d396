//! Results of single external rows: an append-only log a process, so that nothing paid for is lost.
//!
//! A record is `length (u32) · BLAKE3 of key and payload, 8 bytes · key (32 bytes) · payload`, little-endian. A torn or
//! damaged record ends the reading of its file: what was written before it counts. Every process writes its own file,
//! so concurrent runs need no lock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Cursor, Write};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use serde::{Deserialize, Serialize};

use super::collect::names_below;
use super::error::StoreError;
use super::layout::Store;
use crate::fingerprint::{Digest, RowKey, hash_bytes};
use crate::operator::{RowOutput, Usage};

const HEADER: usize = 4 + 8 + 32;

/// What is kept for a row.
#[derive(Clone, Debug)]
pub struct MemoEntry {
    /// Rows by output port.
    pub output: RowOutput,
}

#[derive(Serialize, Deserialize)]
struct Head {
    ports: Vec<(String, usize)>,
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
}

/// File, and bounds of the payload there.
type Place = (usize, usize, usize);

/// The memo of one node identity.
#[derive(Debug)]
pub struct Memo {
    folder: PathBuf,
    known: BTreeMap<RowKey, Vec<Place>>,
    files: Vec<Vec<u8>>,
    own: Option<File>,
    own_path: PathBuf,
    /// Where what is appended goes up, if the store is shared.
    shared: Option<Store>,
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
        let name = store.temporary().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let own_path = own_path(&folder, &name);
        let shared = store.is_shared().then(|| store.clone());
        Self { own_path, folder, known: BTreeMap::new(), files: Vec::new(), own: None, shared }
    }

    fn load(&mut self) -> Result<(), StoreError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StoreError::io("read", &self.folder)(error)),
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rows")) {
            let bytes = fs::read(path).map_err(StoreError::io("read", path))?;
            self.index(bytes);
        }
        Ok(())
    }

    fn index(&mut self, bytes: Vec<u8>) {
        let file = self.files.len();
        let mut at = 0;
        while let Some((key, start, end)) = record_at(&bytes, at) {
            self.known.entry(key).or_default().push((file, start, end));
            at = end;
        }
        self.files.push(bytes);
    }

    /// How many rows are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
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
        self.payloads(key).find_map(decode)
    }

    /// All that is kept under a key.
    pub(super) fn payloads(&self, key: &RowKey) -> impl Iterator<Item = &[u8]> {
        let places = self.known.get(key).into_iter().flatten();
        places.filter_map(|(file, start, end)| self.files[*file].get(*start..*end))
    }

    /// Keeps the result of a row: it is on its way to disk when this returns, and survives the death of the process.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&mut self, key: &RowKey, output: &RowOutput) -> Result<(), StoreError> {
        self.keep(key, &encode(output).map_err(StoreError::Location)?)
    }

    /// Keeps bytes under a key.
    pub(super) fn keep(&mut self, key: &RowKey, payload: &[u8]) -> Result<(), StoreError> {
        let mut record = Vec::with_capacity(HEADER + payload.len());
        record.extend(u32::try_from(payload.len()).map_err(|e| StoreError::Location(e.to_string()))?.to_le_bytes());
        record.extend(checksum(&key.0, payload));
        record.extend(key.0.as_bytes());
        record.extend(payload);
        let path = self.own_path.clone();
        let file = match &mut self.own {
            Some(file) => file,
            none => {
                fs::create_dir_all(&self.folder).map_err(StoreError::io("create", &self.folder))?;
                if let Some(store) = &self.shared {
                    store.watch_segment(&path);
                }
                none.insert(File::create_new(&path).map_err(StoreError::io("create", &path))?)
            }
        };
        file.write_all(&record).map_err(StoreError::io("write", &path))
    }

    /// Flushes to disk, and to the shared store if it is one.
    ///
    /// # Errors
    /// When the disk or the store refuses.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(file) = &self.own {
            file.sync_data().map_err(StoreError::io("flush", &self.own_path))?;
        }
        self.share()
    }

    /// Sends what was kept to the shared store, if it is one.
    pub(super) fn share(&self) -> Result<(), StoreError> {
        self.shared.as_ref().map_or(Ok(()), |store| store.send_segment(&self.own_path))
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
        let rows: Vec<&[u8]> = memo.known.values().filter_map(|places| memo.row(places)).collect();
        if rows.is_empty() {
            return Ok(None);
        }
        let path = self.temporary();
        let mut file = BufWriter::new(File::create(&path).map_err(StoreError::io("create", &path))?);
        for row in &rows {
            file.write_all(row).map_err(StoreError::io("write", &path))?;
        }
        file.flush().map_err(StoreError::io("write", &path))?;
        Ok(Some((path, rows.len())))
    }
}

impl Memo {
    /// The first record in these places that holds a row, as it lies in its file.
    fn row(&self, places: &[(usize, usize, usize)]) -> Option<&[u8]> {
        let record = |(file, start, end): &(usize, usize, usize)| {
            decode(&self.files[*file][*start..*end])?;
            self.files[*file].get(*start - HEADER..*end)
        };
        places.iter().find_map(record)
    }
}

/// The keys of a segment; `None` when any byte of it is not what was written.
pub(super) fn segment_keys(bytes: &[u8]) -> Option<Vec<RowKey>> {
    let mut keys = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (key, start, end) = record_at(bytes, at)?;
        decode(&bytes[start..end])?;
        keys.push(key);
        at = end;
    }
    Some(keys)
}

/// Bytes of the whole records that these begin with.
pub(super) fn whole_records(bytes: &[u8]) -> usize {
    std::iter::successors(Some(0), |at| record_at(bytes, *at).map(|record| record.2)).last().unwrap_or(0)
}

/// A name no other process and no earlier one with the same pid has taken.
fn own_path(folder: &Path, name: &str) -> PathBuf {
    (0..u64::MAX)
        .map(|serial| folder.join(format!("{name}-{serial}.rows")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| folder.join(name))
}

fn checksum(key: &Digest, payload: &[u8]) -> [u8; 8] {
    let mut bytes = key.as_bytes().to_vec();
    bytes.extend(payload);
    let digest = hash_bytes(&bytes);
    let mut sum = [0; 8];
    sum.copy_from_slice(&digest.as_bytes()[..8]);
    sum
}

/// The record at `at`: its key and the bounds of its payload; `None` at the end or where the file is torn.
fn record_at(bytes: &[u8], at: usize) -> Option<(RowKey, usize, usize)> {
    let header = bytes.get(at..at + HEADER)?;
    let length = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    let key = Digest::from_bytes(header[12..HEADER].try_into().ok()?);
    let start = at + HEADER;
    let payload = bytes.get(start..start.checked_add(length)?)?;
    (checksum(&key, payload) == header[4..12]).then_some((RowKey(key), start, start + length))
}

fn encode(output: &RowOutput) -> Result<Vec<u8>, String> {
    let mut streams = Vec::new();
    let mut head = Head {
        ports: Vec::new(),
        calls: output.usage.calls,
        prompt_tokens: output.usage.prompt_tokens,
        completion_tokens: output.usage.completion_tokens,
    };
    for (port, batch) in &output.batches {
        let mut stream = Vec::new();
        let mut writer = StreamWriter::try_new(&mut stream, &batch.schema()).map_err(|error| error.to_string())?;
        writer.write(batch).and_then(|()| writer.finish()).map_err(|error| error.to_string())?;
        drop(writer);
        head.ports.push((port.clone(), stream.len()));
        streams.push(stream);
    }
    let mut out = serde_json::to_vec(&head).map_err(|error| error.to_string())?;
    out.push(b'\n');
    out.extend(streams.concat());
    Ok(out)
}

fn decode(payload: &[u8]) -> Option<MemoEntry> {
    let end = payload.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&payload[..end]).ok()?;
    let mut at = end + 1;
    let mut batches = Vec::new();
    for (port, length) in head.ports {
        let stream = payload.get(at..at + length)?;
        at += length;
        let reader = StreamReader::try_new(Cursor::new(stream), None).ok()?;
        let read: Vec<RecordBatch> = reader.collect::<Result<_, _>>().ok()?;
        batches.extend(read.into_iter().map(|batch| (port.clone(), batch)));
    }
    let usage =
        Usage { calls: head.calls, prompt_tokens: head.prompt_tokens, completion_tokens: head.completion_tokens };
    Some(MemoEntry { output: RowOutput { batches, usage } })
}
