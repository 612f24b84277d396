//! A node that is to be run, and what its kernel's run gave.

use std::sync::Arc;

use serde_json::Value;

use super::identity::Parts;
use super::rows::RowsRun;
use super::run::Run;
use crate::fingerprint::{Digest, NodeKey, Reason};
use crate::operator::{Computed, EndpointSession};
use crate::plan::Node;
use crate::store::{CallCache, OutputRecord, Written};

/// Everything that running one node needs.
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
    /// The calls to the model that it asks.
    pub(super) calls: Option<Arc<CallCache>>,
}

impl NodeJob {
    pub(super) fn node(&self) -> &Node {
        self.run.node(self.place)
    }

    /// Rows that the node may give, if it is a source.
    pub(super) fn limit(&self) -> Option<u64> {
        self.run.options.limit.filter(|_| self.node().inputs.is_empty())
    }

    /// Are known parts of the row input passed over? Not where an output was found damaged: the parts that were taken
    /// over for it may be what is damaged.
    pub(super) fn recall_blocks(&self) -> bool {
        self.recall && !self.reasons.iter().any(|reason| matches!(reason, Reason::ArtifactCorrupt { .. }))
    }

    /// What the rows, and what the parts, of the row input have in common.
    pub(super) fn bases(&self) -> (Digest, Digest) {
        let node = self.node();
        (self.parts.row_base(node), self.parts.block_base(node))
    }
}

/// What a kernel's run gave.
pub(super) struct Ran {
    pub(super) written: Written,
    pub(super) rows: RowsRun,
    pub(super) computed: Computed,
}
