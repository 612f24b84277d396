//! Discards results computed from sources that changed while they were read.

use std::path::Path;
use std::sync::Arc;

use crate::error::OperatorError;
use crate::fingerprint::SeenSources;
use crate::operator::{BoundOperator, Pieces};

/// Compares the sources of a node with those of its key, after the kernel ran.
///
/// # Errors
/// Fails with [`Blame::Changed`](crate::error::Blame::Changed) if a source differs.
pub(crate) fn unchanged(seen: &SeenSources, operator: &BoundOperator, directory: &Path) -> Result<(), OperatorError> {
    match seen.changed_at_end(&operator.declaration.sources(directory)) {
        None => Ok(()),
        Some(what) => Err(OperatorError::changed(&what)),
    }
}

/// Pieces that are stored only while no source has changed.
pub(crate) struct WatchedPieces<P> {
    pub(crate) pieces: Arc<P>,
    pub(crate) sources: Arc<SeenSources>,
}

impl<P: Pieces> Pieces for WatchedPieces<P> {
    fn find(&self, content: &[u8]) -> Result<Option<Vec<u8>>, OperatorError> {
        self.pieces.find(content)
    }

    fn keep(&self, content: &[u8], made: &[u8]) -> Result<(), OperatorError> {
        match self.sources.changed() {
            None => self.pieces.keep(content, made),
            Some(what) => Err(OperatorError::changed(&what)),
        }
    }
}
