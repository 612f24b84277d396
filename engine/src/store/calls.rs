//! Calls of rows that are not finished: each answer is kept as it comes, so that a killed row goes on where it was. They
//! lie beside the rows of the memo, in segments of their own (`*.calls`). A finished row stands for all its calls: then
//! they are not loaded any more, and their segments go.
//!
//! A payload is the row's key (32 bytes), the usage as a line of JSON, and the answer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::StoreError;
use super::layout::Store;
use super::memo::Memo;
use super::segment::{OwnSegment, Source, abandoned, open_all, remove, scan};
use crate::fingerprint::{Digest, RowKey};
use crate::operator::{KeptCall, Usage};

const EXTENSION: &str = "calls";
/// Bytes of the row's key.
const KEY: usize = 32;
/// So many segments of dead processes may lie there before their calls are copied into one.
const MOST: usize = 16;

/// The calls of one node identity.
#[derive(Debug)]
pub struct Calls {
    known: BTreeMap<RowKey, KeptCall>,
    own: Mutex<Own>,
}

#[derive(Debug)]
struct Own {
    segment: OwnSegment,
    /// Why the last call could not be kept.
    failure: Option<StoreError>,
}

impl Calls {
    /// Reads the calls of rows that `rows` does not know.
    ///
    /// # Errors
    /// When the folder is there and cannot be read.
    pub fn open(store: &Store, base: &Digest, rows: &Memo) -> Result<Self, StoreError> {
        let mut calls = Self::empty(store, base);
        let files = open_all(&store.memo_folder(base), &[EXTENSION])?;
        let mut crowd = 0;
        for (path, source) in &files {
            let before = calls.known.len();
            calls.load(source, rows).map_err(StoreError::io("read", path))?;
            crowd += usize::from(calls.known.len() > before);
        }
        // On a full disk, say: it can wait.
        if let Err(error) = calls.tidy(files.iter().map(|(path, _)| path), rows, crowd > MOST) {
            tracing::debug!("the turns of unfinished rows were not tidied: {error}");
        }
        Ok(calls)
    }

    /// Knows nothing, but keeps what comes.
    #[must_use]
    pub fn empty(store: &Store, base: &Digest) -> Self {
        let segment = OwnSegment::new(&store.memo_folder(base), store.process_name(), EXTENSION);
        Self { known: BTreeMap::new(), own: Mutex::new(Own { segment, failure: None }) }
    }

    fn load(&mut self, source: &Source, rows: &Memo) -> std::io::Result<()> {
        source.scan(|found| {
            if let Some((_, call)) = read(found.payload()).filter(|(row, _)| !rows.contains(row)) {
                self.known.insert(RowKey(found.key), call);
            }
        })
    }

    /// Removes segments of dead processes in which nothing is needed any more; with `merging`, the others too, once what is
    /// needed of them is in the own one.
    fn tidy<'p>(&self, paths: impl Iterator<Item = &'p PathBuf>, rows: &Memo, merging: bool) -> Result<(), StoreError> {
        let mut own = self.own();
        let mut copied = Vec::new();
        for (path, file) in paths.filter_map(|path| Some((path, abandoned(path)?))) {
            let length = file.metadata().map_err(StoreError::io("read", path))?.len();
            let (mut needed, mut failure) = (0, None);
            scan(&file, length, |found| {
                if read(found.payload()).is_some_and(|(row, _)| !rows.contains(&row)) {
                    needed += 1;
                    if merging && failure.is_none() {
                        failure = own.segment.append(&found.key, found.payload()).err();
                    }
                }
            });
            if let Some(error) = failure {
                return Err(error);
            }
            match needed {
                0 => remove(path),
                _ => copied.push((path, file)),
            }
        }
        if merging {
            own.segment.sync()?;
            for (path, _) in &copied {
                remove(path);
            }
        }
        Ok(())
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many calls are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Is no call known?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What was answered to the call of that key.
    #[must_use]
    pub fn recall(&self, key: &RowKey) -> Option<KeptCall> {
        self.known.get(key).cloned()
    }

    /// Keeps an answer: it survives the death of the process. What goes wrong is told by [`Self::check`].
    pub fn keep(&self, row: &RowKey, key: &RowKey, call: &KeptCall) {
        let mut own = self.own();
        if let Err(error) = write(row, call).and_then(|payload| own.segment.append(&key.0, &payload)) {
            own.failure.get_or_insert(error);
        }
    }

    /// Were all calls kept?
    ///
    /// # Errors
    /// Why one was not.
    pub fn check(&self) -> Result<(), StoreError> {
        self.own().failure.take().map_or(Ok(()), Err)
    }

    /// The end of the node's run. With all rows remembered (`finished`), the calls that led to them are not needed.
    ///
    /// # Errors
    /// When the disk refuses to flush.
    pub fn close(&self, finished: bool) -> Result<(), StoreError> {
        let mut own = self.own();
        if finished {
            own.segment.remove();
        } else {
            own.segment.sync()?;
        }
        Ok(())
    }
}

fn write(row: &RowKey, call: &KeptCall) -> Result<Vec<u8>, StoreError> {
    let mut payload = row.0.as_bytes().to_vec();
    payload.extend(serde_json::to_vec(&call.usage).map_err(|error| StoreError::Location(error.to_string()))?);
    payload.push(b'\n');
    payload.extend(&call.response);
    Ok(payload)
}

fn read(payload: &[u8]) -> Option<(RowKey, KeptCall)> {
    let row = Digest::from_bytes(payload.get(..KEY)?.try_into().ok()?);
    let rest = &payload[KEY..];
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let usage: Usage = serde_json::from_slice(&rest[..end]).ok()?;
    Some((RowKey(row), KeptCall { response: rest[end + 1..].to_vec(), usage }))
}
