//! Blocks: what a `Map` node made of one part of its input. A part that comes again, in a longer or otherwise changed
//! table, is not mapped again: its outputs are taken over as they lie in the store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::artifact::{ArtifactId, Part};
use super::error::StoreError;
use super::layout::Store;
use super::memo::Memo;
use crate::fingerprint::{Digest, RowKey, block_key};

/// A block that is taken over has one more place where it lies; so many are noted, for when the older ones are collected.
const MOST_PLACES: usize = 4;

/// Parts by output port, with the artifacts that they lie in. A port without rows has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Rows of the input part.
    pub rows: u64,
    pub(super) outputs: BTreeMap<String, Vec<(ArtifactId, Part)>>,
}

/// The known blocks of one node identity.
#[derive(Debug)]
pub struct Blocks {
    store: Store,
    base: Digest,
    memo: Memo,
}

impl Blocks {
    /// Reads what is known under `base`, the node's identity without its row input; nothing unless `recall`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn open(store: &Store, base: &Digest, recall: bool) -> Result<Self, StoreError> {
        let memo = if recall {
            store.tidy_memo(base);
            Memo::open(store, base)?
        } else {
            Memo::empty(store, base)
        };
        Ok(Self { store: store.clone(), base: *base, memo })
    }

    /// The key of an input part.
    #[must_use]
    pub fn key(&self, part: &Digest) -> RowKey {
        block_key(&self.base, part)
    }

    /// What was made of an input part, if it is known and its files are there with their sizes.
    #[must_use]
    pub fn find(&self, key: &RowKey) -> Option<Block> {
        let there = |(artifact, part): &(ArtifactId, Part)| {
            let here = || self.store.has_part(artifact, part);
            here() || (self.store.is_shared() && self.store.bring(artifact).is_ok() && here())
        };
        let mut blocks = self.memo.payloads(key).filter_map(|payload| serde_json::from_slice::<Block>(&payload).ok());
        blocks.find(|block| block.outputs.values().flatten().all(there))
    }

    /// Keeps blocks for later runs.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep(&mut self, blocks: &[(RowKey, Block)]) -> Result<(), StoreError> {
        for (key, block) in blocks {
            if self.memo.payloads(key).count() >= MOST_PLACES && self.find(key).is_some() {
                continue;
            }
            let payload = serde_json::to_vec(block).map_err(|error| StoreError::Location(error.to_string()))?;
            self.memo.keep(key, &payload)?;
        }
        self.memo.share()
    }
}

pub(super) fn part_path(store: &Store, artifact: &ArtifactId, part: &Part) -> PathBuf {
    store.artifact_folder(artifact).join(&part.name)
}
