//! Pieces: cached results of input parts that a node splits itself.
//!
//! Pieces are stored like rows of a memo, under a key of their content. A longer or otherwise changed input therefore
//! costs only its new pieces, and a killed node resumes.

use std::sync::{Mutex, PoisonError};

use super::Memo;
use crate::error::OperatorError;
use crate::fingerprint::{Digest, piece_key, pieces_base};
use crate::operator::Pieces;
use crate::store::error::StoreError;
use crate::store::layout::Store;

/// The cached pieces of one node identity, read on first use.
pub struct KeptPieces {
    store: Store,
    base: Digest,
    recall: bool,
    memo: Mutex<Option<Memo>>,
}

impl Store {
    /// Returns the pieces of nodes that share `row_base`, the identity without the row input. Earlier pieces are used
    /// only with `recall`.
    pub fn pieces(&self, row_base: &Digest, recall: bool) -> KeptPieces {
        KeptPieces { store: self.clone(), base: pieces_base(row_base), recall, memo: Mutex::default() }
    }
}

impl KeptPieces {
    /// Returns the base of the memo, if it exists.
    pub fn base(&self) -> Option<Digest> {
        self.store.memo_folder(&self.base).is_dir().then_some(self.base)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Memo) -> Result<R, StoreError>) -> Result<R, OperatorError> {
        let mut slot = self.memo.lock().unwrap_or_else(PoisonError::into_inner);
        let memo = match &mut *slot {
            Some(memo) => memo,
            empty => empty.insert(self.store.recall(&self.base, self.recall)?),
        };
        Ok(work(memo)?)
    }
}

impl Pieces for KeptPieces {
    fn find(&self, content: &[u8]) -> Result<Option<Vec<u8>>, OperatorError> {
        let key = piece_key(&self.base, content);
        self.with(|memo| Ok(memo.payloads(&key).next()))
    }

    fn keep(&self, content: &[u8], made: &[u8]) -> Result<(), OperatorError> {
        let key = piece_key(&self.base, content);
        self.with(|memo| memo.keep(&key, made))
    }
}

impl Drop for KeptPieces {
    /// Uploads new pieces to a shared store. If it cannot be reached, other machines compute them again.
    fn drop(&mut self) {
        if let Some(memo) = self.memo.get_mut().unwrap_or_else(PoisonError::into_inner) {
            drop(memo.share());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::hash_bytes;

    #[test]
    fn pieces_come_back_under_the_same_identity_and_content_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let (base, other) = (hash_bytes(b"one"), hash_bytes(b"other"));
        store.pieces(&base, true).keep(b"text", b"vector").unwrap();
        let known = store.pieces(&base, true);
        assert_eq!(known.find(b"text").unwrap().as_deref(), Some(&b"vector"[..]));
        assert_eq!(known.find(b"another text").unwrap(), None);
        assert_eq!(store.pieces(&other, true).find(b"text").unwrap(), None);
        assert_eq!(store.pieces(&base, false).find(b"text").unwrap(), None, "asked to compute everything anew");
    }

    #[test]
    fn a_damaged_piece_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let base = hash_bytes(b"one");
        let pieces = store.pieces(&base, true);
        pieces.keep(b"text", b"vector").unwrap();
        let memo = store.memo_folder(&pieces.base);
        drop(pieces);
        let segment = std::fs::read_dir(memo).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&segment).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&segment, bytes).unwrap();
        assert_eq!(store.pieces(&base, true).find(b"text").unwrap(), None);
    }
}
