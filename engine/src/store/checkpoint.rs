//! Checkpoints of running nodes: one file per node, replaced as a whole, removed once the result is recorded.

use std::fs;
use std::path::PathBuf;

use super::error::StoreError;
use super::files::if_there;
use super::layout::Store;
use super::nofollow;
use super::place::sharded;
use crate::fingerprint::NodeKey;
use crate::operator::{CheckpointStore, OperatorError};

/// State of one node. The caller must hold the node's lease.
pub struct Checkpoint {
    store: Store,
    path: PathBuf,
}

impl Store {
    /// Returns the checkpoint of the node with that key.
    pub fn checkpoint(&self, key: &NodeKey) -> Checkpoint {
        let path = self.root().join(sharded("checkpoints", &key.0.hex()));
        Checkpoint { store: self.clone(), path }
    }
}

impl Checkpoint {
    /// Removes the checkpoint if it exists.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub fn remove(&self) -> Result<(), StoreError> {
        if_there(nofollow::remove_file(&self.path)).map(drop).map_err(StoreError::io("remove", &self.path))
    }
}

impl CheckpointStore for Checkpoint {
    fn load(&self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(if_there(fs::read(&self.path)).map_err(StoreError::io("read", &self.path))?)
    }

    fn save(&self, state: &[u8]) -> Result<(), OperatorError> {
        Ok(self.store.write_file(&self.path, state)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::hash_bytes;

    #[test]
    fn the_last_state_is_found_again_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let (key, other) = (NodeKey(hash_bytes(b"a")), NodeKey(hash_bytes(b"b")));
        assert_eq!(store.checkpoint(&key).load().unwrap(), None);
        store.checkpoint(&key).save(b"one").unwrap();
        store.checkpoint(&key).save(b"two").unwrap();
        assert_eq!(store.checkpoint(&key).load().unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(store.checkpoint(&other).load().unwrap(), None);
        store.checkpoint(&key).remove().unwrap();
        store.checkpoint(&key).remove().unwrap();
        assert_eq!(store.checkpoint(&key).load().unwrap(), None);
    }
}
