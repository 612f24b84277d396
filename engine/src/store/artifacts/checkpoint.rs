//! Checkpoints of running nodes: one file per node, replaced as a whole, removed once the result is recorded.

use std::fs;
use std::path::PathBuf;

use crate::error::OperatorError;
use crate::fingerprint::{NodeKey, hash_bytes};
use crate::operator::CheckpointStore;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::paths::sharded;

/// State of one node. The caller must hold the node's lease.
pub struct Checkpoint {
    store: Store,
    path: PathBuf,
}

impl Store {
    /// Returns the checkpoint of the node with that key.
    pub fn checkpoint(&self, key: &NodeKey) -> Checkpoint {
        Checkpoint { store: self.clone(), path: self.root().join(sharded("checkpoints", &key.0.hex())) }
    }
}

impl Checkpoint {
    /// Removes the checkpoint if it exists.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub fn remove(&self) -> Result<(), StoreError> {
        if_there(nofollow::remove_file(&self.path)).context("remove", &self.path)?;
        Ok(())
    }
}

impl CheckpointStore for Checkpoint {
    fn load(&self) -> Result<Option<Vec<u8>>, OperatorError> {
        let Some(mut state) = if_there(fs::read(&self.path)).context("read", &self.path)? else { return Ok(None) };
        // The state of an earlier version has no checksum.
        let Some(length) = state.len().checked_sub(CHECK).filter(|length| state[*length..].starts_with(MARK)) else {
            return Ok(Some(state));
        };
        if state[length..] != check_of(&state[..length]) {
            tracing::warn!("{} is damaged: the computation starts over", self.path.display());
            return Ok(None);
        }
        state.truncate(length);
        Ok(Some(state))
    }

    fn save(&self, state: &[u8]) -> Result<(), OperatorError> {
        Ok(self.store.write_pieces(&self.path, &[state, &check_of(state)])?)
    }
}

/// Begins the checksum at the end of a checkpoint.
const MARK: &[u8] = b"\nsearchmill checkpoint ";
/// Length of the checksum with its mark.
const CHECK: usize = MARK.len() + 64;

fn check_of(state: &[u8]) -> Vec<u8> {
    [MARK, hash_bytes(state).hex().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_state_is_no_state() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let checkpoint = store.checkpoint(&NodeKey(hash_bytes(b"a")));
        checkpoint.save(b"weights and means").unwrap();
        let whole = fs::read(&checkpoint.path).unwrap();
        for place in (0..17).chain(17 + MARK.len()..whole.len()) {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(&checkpoint.path, changed).unwrap();
            assert_eq!(checkpoint.load().unwrap(), None, "byte {place}");
        }
        fs::write(&checkpoint.path, b"of an earlier version").unwrap();
        assert_eq!(checkpoint.load().unwrap().as_deref(), Some(&b"of an earlier version"[..]));
    }

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
