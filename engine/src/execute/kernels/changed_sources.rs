//! Discards results computed from sources that changed while they were read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::endpoint::{FailureKind, RowFailure};
use crate::error::OperatorError;
use crate::fingerprint::SeenSources;
use crate::operator::{AsyncMapKernel, BoundOperator, Context, Pieces, RowOutput};

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

/// A row kernel whose rows do not count once a source has changed: they are neither done nor failed.
pub(super) struct WatchedRows {
    pub(crate) kernel: Arc<dyn AsyncMapKernel>,
    pub(crate) sources: Arc<SeenSources>,
}

impl AsyncMapKernel for WatchedRows {
    fn samples(&self) -> u32 {
        self.kernel.samples()
    }

    fn reads(&self) -> Vec<String> {
        self.kernel.reads()
    }

    fn label(&self, row: &RecordBatch, sample: u32, output: RowOutput) -> Option<RowOutput> {
        self.kernel.label(row, sample, output)
    }

    fn said(&self, rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
        self.kernel.said(rows)
    }

    fn figures(&self, output: &RowOutput) -> Vec<(&'static str, f64)> {
        self.kernel.figures(output)
    }

    fn summary(&self, sums: &BTreeMap<&'static str, f64>) -> String {
        self.kernel.summary(sums)
    }

    fn counts(&self, output: &RowOutput) -> Result<u64, OperatorError> {
        self.kernel.counts(output)
    }

    fn fault(&self) -> Option<OperatorError> {
        self.kernel.fault()
    }

    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
        async move {
            let done = self.kernel.run(row, sample, context).await;
            match self.sources.changed() {
                None => done,
                Some(what) => Err(RowFailure::new(FailureKind::Cancelled, OperatorError::changed(&what).message)),
            }
        }
        .boxed()
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
