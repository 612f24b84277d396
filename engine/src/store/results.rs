//! The action cache: node key to result.
//!
//! A record is a line of JSON and a line with the BLAKE3 digest of the first one, as a JSON string: a record in which
//! anything was changed is a miss.

use std::fs;

use super::error::StoreError;
use super::layout::Store;
use super::manifest::NodeResult;
use crate::fingerprint::{NodeKey, hash_bytes};

impl Store {
    /// The result of a key, if it is known. An unreadable record is a miss: the node runs again and writes it anew.
    #[must_use]
    pub fn result(&self, key: &NodeKey) -> Option<NodeResult> {
        let text = fs::read(self.result_path(key)).ok()?;
        let result = read_record(&text).filter(|result| result.key == *key);
        if result.is_none() {
            tracing::warn!("the record of key {} is damaged and ignored", key.0.short());
        }
        result
    }

    /// Records a finished node.
    ///
    /// # Errors
    /// When it cannot be written: then the node is not done.
    pub fn record(&self, result: &NodeResult) -> Result<(), StoreError> {
        let mut text = serde_json::to_vec(result).map_err(|error| StoreError::Location(error.to_string()))?;
        let checksum = format!("\n\"{}\"\n", hash_bytes(&text));
        text.extend(checksum.into_bytes());
        self.write_file(&self.result_path(&result.key), &text)
    }
}

fn read_record(text: &[u8]) -> Option<NodeResult> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let (line, checksum) = text.split_at(end);
    let wanted = format!("\n\"{}\"\n", hash_bytes(line));
    (checksum == wanted.as_bytes()).then(|| serde_json::from_slice(line).ok())?
}
