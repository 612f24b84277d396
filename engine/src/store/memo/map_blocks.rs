//! Blocks: the cached outputs of a `Map` node for parts of its input.
//!
//! A part that reappears in a longer or otherwise changed table is not mapped again: its outputs are linked from the
//! store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Memo;
use crate::fingerprint::{Digest, RowKey, block_key};
use crate::store::artifacts::artifact::{ArtifactId, Part};
use crate::store::error::StoreError;
use crate::store::layout::Store;

/// Limit of recorded locations per block. A reused block gains a location, for when older artifacts are collected.
const MOST_PLACES: usize = 4;

/// Parts by output port, with the artifacts that contain them. A port without rows has no parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Rows of the input part.
    pub rows: u64,
    pub(crate) outputs: BTreeMap<String, Vec<(ArtifactId, Part)>>,
}

/// The cached blocks of one node identity.
#[derive(Debug)]
pub struct Blocks {
    store: Store,
    base: Digest,
    memo: Memo,
}

impl Blocks {
    /// Reads the blocks cached under `base`, the node's identity without its row input; none unless `recall`.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn open(store: &Store, base: &Digest, recall: bool) -> Result<Self, StoreError> {
        Ok(Self { store: store.clone(), base: *base, memo: store.recall(base, recall)? })
    }

    /// Returns the key of an input part.
    pub fn key(&self, part: &Digest) -> RowKey {
        block_key(&self.base, part)
    }

    /// Returns the outputs of an input part if they are cached and their files are present with their sizes.
    pub fn find(&self, key: &RowKey) -> Option<Block> {
        let mut blocks = self.memo.payloads(key).filter_map(|payload| serde_json::from_slice::<Block>(&payload).ok());
        blocks.find(|block| block.outputs.values().flatten().all(|(artifact, part)| self.has_part(artifact, part)))
    }

    fn has_part(&self, artifact: &ArtifactId, part: &Part) -> bool {
        let store = &self.store;
        store.has_part(artifact, part)
            || (store.is_shared() && store.bring(artifact).is_ok() && store.has_part(artifact, part))
    }

    /// Stores blocks for later runs.
    ///
    /// # Errors
    /// Fails if they cannot be written.
    pub fn keep(&mut self, blocks: &[(RowKey, Block)]) -> Result<(), StoreError> {
        for (key, block) in blocks {
            if self.memo.payloads(key).count() >= MOST_PLACES && self.find(key).is_some() {
                continue;
            }
            self.memo.keep(key, &serde_json::to_vec(block)?)?;
        }
        self.memo.share()
    }
}
