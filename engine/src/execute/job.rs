//! A node that is to be run, and what its kernel's run gave.

use std::sync::Arc;

use super::identity::Parts;
use super::options::Settings;
use super::rows::RowsRun;
use super::stop::Stop;
use crate::fingerprint::{Digest, Reason};
use crate::operator::{Computed, EndpointSession};
use crate::plan::{Node, Plan};
use crate::report::Reporter;
use crate::store::{CallCache, OutputRecord, Store, Written};

/// Everything that running one node needs.
pub(super) struct NodeJob {
    pub(super) plan: Arc<Plan>,
    pub(super) place: usize,
    pub(super) parts: Parts,
    pub(super) inputs: Vec<OutputRecord>,
    pub(super) reasons: Vec<Reason>,
    pub(super) recall: bool,
    /// When the run began, as stamps of remembered rows and answers count it.
    pub(super) started: u64,
    pub(super) store: Store,
    pub(super) options: Settings,
    pub(super) reporter: Arc<dyn Reporter>,
    pub(super) stop: Stop,
    pub(super) run: String,
    pub(super) http: reqwest::Client,
    pub(super) session: EndpointSession,
    /// The calls to the model that it asks.
    pub(super) calls: Option<Arc<CallCache>>,
}

impl NodeJob {
    pub(super) fn node(&self) -> &Node {
        &self.plan.nodes()[self.place]
    }

    /// Rows that the node may give, if it is a source.
    pub(super) fn limit(&self) -> Option<u64> {
        self.options.limit.filter(|_| self.node().inputs.is_empty())
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
