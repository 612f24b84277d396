//! Log of collections: one line each, written before anything is removed.
//!
//! For every collected result, it records when and by which collection it was removed.

use std::fs;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::checksum::{sealed_json, sealed_line};
use crate::fingerprint::NodeKey;
use crate::store::error::{IoContext, StoreError};
use crate::store::layout::Store;
use crate::store::nofollow;

/// One collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// Its id: `gc-20261120-131502-1a2b`.
    pub id: String,
    /// Unix time in seconds.
    pub time: f64,
    /// The policy that it applied.
    pub kept: String,
    /// Results that it collected.
    pub keys: Vec<NodeKey>,
    /// Runs whose records it removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<String>,
}

impl Store {
    fn collections_path(&self) -> std::path::PathBuf {
        self.root().join("collected").join("collections.jsonl")
    }

    /// Records what a collection is about to remove.
    pub(crate) fn note_collection(&self, collection: &Collection) -> Result<(), StoreError> {
        let path = self.collections_path();
        let folder = path.parent().unwrap_or(self.root());
        nofollow::create_folder(folder).context("create", folder)?;
        let line = sealed_line(collection)?;
        let mut file = nofollow::append(&path).context("write", &path)?;
        file.write_all(&line).context("write", &path)?;
        // On disk before anything is removed: without the line, results would count as deleted by hand.
        file.sync_data().context("write", &path)
    }

    /// Returns all collections, oldest first. Damaged lines are skipped.
    pub fn collections(&self) -> Vec<Collection> {
        let text = fs::read(self.collections_path()).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(|line| sealed_json(line.as_bytes())).collect()
    }
}
