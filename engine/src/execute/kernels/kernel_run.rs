//! What the kernel of a node gets, and what a run of it gives; nothing, if a source changed while it was read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::call_journal::Observations;
use crate::endpoint::Usage;
use crate::error::OperatorError;
use crate::fingerprint::{Digest, SeenSources};
use crate::operator::{BoundOperator, Context, Inputs, Pieces, RowsInput};
use crate::spec::OnError;
use crate::store::{CallCache, ColumnLineage, Store};

/// The context of a kernel run and its inputs.
pub(crate) struct KernelRun {
    pub(crate) inputs: Inputs,
    pub(crate) main_port: Option<String>,
    pub(crate) context: Context,
    /// Identity without the row input, shared by all rows of that input.
    pub(crate) row_base: Digest,
    /// Identity without the row input, shared by all parts of that input.
    pub(crate) block_base: Digest,
    /// Whether to skip known parts of the row input.
    pub(crate) recall_blocks: bool,
    pub(crate) on_error: OnError,
    /// Whether rows that the budget refuses are rejected, so that the node ends without them.
    pub(crate) finishes: bool,
    pub(crate) store: Store,
    /// The remembered calls to the node's model.
    pub(crate) calls: Option<Arc<CallCache>>,
    /// The remembered observations of its services.
    pub(crate) observed: Observations,
    /// The sources as the key saw them.
    pub(crate) sources: Arc<SeenSources>,
}

impl KernelRun {
    /// A run without inputs that recalls nothing and calls nothing: its memos are those of no node.
    pub(crate) fn new(context: Context, store: &Store, sources: Arc<SeenSources>) -> Self {
        Self {
            inputs: Inputs::new(),
            main_port: None,
            context,
            row_base: Digest::from_bytes([0; 32]),
            block_base: Digest::from_bytes([0; 32]),
            recall_blocks: false,
            on_error: OnError::DeadLetter,
            finishes: false,
            store: store.clone(),
            calls: None,
            observed: Observations::default(),
            sources,
        }
    }

    /// Returns the rows of the main input.
    pub(crate) fn main_rows(&self) -> Result<&RowsInput, OperatorError> {
        self.inputs.rows(self.main_port.as_deref().unwrap_or_default())
    }

    /// Returns the stamp before which rows and answers do not count.
    pub(crate) fn since(&self) -> Result<u64, OperatorError> {
        Ok(self.store.floor(&self.row_base)?.since)
    }
}

/// The outcome of a kernel run; most fields apply only to row kernels and queries.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RowsRun {
    #[serde(flatten)]
    pub(crate) usage: Usage,
    pub(crate) cached_rows: u64,
    /// Failed rows dropped by `on_error: drop`.
    pub(crate) dropped: u64,
    /// Rows rejected because the budget was used up: they were never asked.
    #[serde(default)]
    pub(crate) unasked: u64,
    /// Stopped before all rows were done; finished rows are in the memo.
    pub(crate) stopped: bool,
    /// Base of the memo that holds the rows.
    pub(crate) memo: Option<Digest>,
    /// Base of the calls that hold the answers.
    #[serde(skip)]
    pub(crate) asked: Option<Digest>,
    /// Bases of the memos that hold the observations.
    #[serde(skip)]
    pub(crate) observed: Vec<Digest>,
    /// Stamp before which rows and answers do not count.
    #[serde(default)]
    pub(crate) since: u64,
    /// Lineage of the columns of a query's outputs.
    pub(crate) columns: BTreeMap<String, ColumnLineage>,
    /// The first failed row, if it fails the node. Rows in flight are still awaited and remembered.
    #[serde(skip)]
    pub(crate) failure: Option<OperatorError>,
}

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
