//! The action cache: node key to result. First writer wins.

use std::fs;

use super::error::StoreError;
use super::layout::Store;
use super::manifest::NodeResult;
use crate::fingerprint::NodeKey;

impl Store {
    /// The result of a key, if it is known. An unreadable record is a miss: the node runs again and writes it anew.
    #[must_use]
    pub fn result(&self, key: &NodeKey) -> Option<NodeResult> {
        let text = fs::read(self.result_path(key)).ok()?;
        match serde_json::from_slice::<NodeResult>(&text) {
            Ok(result) if result.key == *key => Some(result),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!("the record of key {} is damaged and ignored: {error}", key.0.short());
                None
            }
        }
    }

    /// Records a finished node.
    ///
    /// # Errors
    /// When it cannot be written: then the node is not done.
    pub fn record(&self, result: &NodeResult) -> Result<(), StoreError> {
        let text = serde_json::to_vec(result).map_err(|error| StoreError::Location(error.to_string()))?;
        self.write_file(&self.result_path(&result.key), &text)
    }
}
