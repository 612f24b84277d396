//! The action cache: maps node keys to results.
//!
//! A record is a line of JSON followed by the BLAKE3 digest of that line, as a JSON string. A record that was changed
//! is a cache miss.

use std::fs;

use super::node_result::NodeResult;
use crate::fingerprint::{NodeKey, hash_bytes};
use crate::store::error::StoreError;
use crate::store::layout::Store;
use crate::store::remote::Pending;

/// The state of a result's record.
#[derive(Clone, Debug)]
pub enum RecordState {
    /// An intact record of this key.
    Whole(Box<NodeResult>),
    /// A damaged record, with its content as far as it can be read. Never reused.
    Damaged(Option<Box<NodeResult>>),
    /// No record.
    Missing,
}

impl Store {
    /// Returns the result of a key. A damaged record is a cache miss: the node runs again and replaces it.
    pub fn result(&self, key: &NodeKey) -> Option<NodeResult> {
        match self.result_here(key) {
            RecordState::Whole(result) => return Some(*result),
            RecordState::Damaged(_) => tracing::warn!("ignoring the damaged record of key {}", key.0.short()),
            RecordState::Missing => {}
        }
        self.fetch_record(key, "results", 0)
    }

    /// Returns the state of a key's record.
    pub fn result_state(&self, key: &NodeKey) -> RecordState {
        match self.result_here(key) {
            RecordState::Whole(result) => RecordState::Whole(result),
            other => self.fetch_record(key, "results", 0).map_or(other, |result| RecordState::Whole(Box::new(result))),
        }
    }

    pub(crate) fn result_here(&self, key: &NodeKey) -> RecordState {
        let Ok(text) = fs::read(self.record_path(key, "results")) else { return RecordState::Missing };
        if let Some(result) = read_record(&text).filter(|result| result.key == *key) {
            return RecordState::Whole(Box::new(result));
        }
        // The line of JSON alone: its checksum may be what was damaged.
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        RecordState::Damaged(serde_json::from_slice(line).ok())
    }

    /// Returns the keys of all results, sorted.
    pub fn result_keys(&self) -> Vec<NodeKey> {
        self.keys_below("results")
    }

    /// Records a finished node. If another machine recorded a different result first in a shared store, that one counts
    /// and is returned.
    ///
    /// # Errors
    /// Fails if the record cannot be written; the node then counts as not done. If only the upload fails, the next run
    /// repeats it.
    pub fn record(&self, result: &NodeResult) -> Result<Option<NodeResult>, StoreError> {
        self.record_with(result, false)
    }

    /// Records a finished node, replacing an earlier record.
    ///
    /// # Errors
    /// Fails like [`Store::record`].
    pub fn record_anew(&self, result: &NodeResult) -> Result<(), StoreError> {
        self.record_with(result, true)?;
        Ok(())
    }

    fn record_with(&self, result: &NodeResult, anew: bool) -> Result<Option<NodeResult>, StoreError> {
        let pending = Pending::Result(result.key);
        // Noted before the record is written, forgotten once it is there: a run that is killed in between, or cannot
        // reach the shared store, leaves the upload to the next one.
        self.note_pending(&pending)?;
        self.write_file(&self.record_path(&result.key, "results"), &Self::record_text(result)?)?;
        let first = self.send_result(result, anew)?;
        self.forget_pending(&pending);
        Ok(first)
    }

    pub(crate) fn record_text(result: &NodeResult) -> Result<Vec<u8>, StoreError> {
        let mut text = serde_json::to_vec(result)?;
        text.extend(format!("\n\"{}\"\n", hash_bytes(&text)).into_bytes());
        Ok(text)
    }
}

pub(crate) fn read_record(text: &[u8]) -> Option<NodeResult> {
    let (line, checksum) = text.split_at(text.iter().position(|byte| *byte == b'\n')?);
    let wanted = format!("\n\"{}\"\n", hash_bytes(line));
    if checksum == wanted.as_bytes() { serde_json::from_slice(line).ok() } else { None }
}
