//! A node to be run, and the result of its kernel.

use std::sync::Arc;

use serde_json::Value;

use super::identity::Parts;
use super::rows::RowsRun;
use super::run::Run;
use crate::fingerprint::{Digest, NodeKey, Reason};
use crate::operator::{Computed, EndpointSession};
use crate::plan::Node;
use crate::store::{CallCache, OutputRecord, Written};

/// Everything needed to run one node.
pub(super) struct NodeJob {
    pub(super) run: Arc<Run>,
    pub(super) place: usize,
    pub(super) key: NodeKey,
    pub(super) preimage: Value,
    pub(super) parts: Parts,
    pub(super) inputs: Vec<OutputRecord>,
    pub(super) reasons: Vec<Reason>,
    pub(super) recall: bool,
    pub(super) session: EndpointSession,
    /// The remembered calls to the node's model.
    pub(super) calls: Option<Arc<CallCache>>,
}

impl NodeJob {
    pub(super) fn node(&self) -> &Node {
        self.run.node(self.place)
    }

    /// Returns the row limit of the node, if it is a source.
    pub(super) fn limit(&self) -> Option<u64> {
        self.run.options.limit.filter(|_| self.node().inputs.is_empty())
    }

    /// Whether known parts of the row input are skipped. Not after an output was found damaged: the reused parts may be
    /// the damaged ones.
    pub(super) fn recall_blocks(&self) -> bool {
        self.recall && !self.reasons.iter().any(|reason| matches!(reason, Reason::ArtifactCorrupt { .. }))
    }

    /// Returns the digests shared by all rows, and by all parts, of the row input.
    pub(super) fn bases(&self) -> (Digest, Digest) {
        let node = self.node();
        (self.parts.row_base(node), self.parts.block_base(node))
    }
}

/// The result of a kernel run.
pub(super) struct Ran {
    pub(super) written: Written,
    pub(super) rows: RowsRun,
    pub(super) computed: Computed,
}
