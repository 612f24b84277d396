//! A node to be run, the run of its kernel, and its result.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::run::Run;
use crate::endpoint::{EndpointSession, Usage};
use crate::error::OperatorError;
use crate::execute::decide::identity::Parts;
use crate::execute::kernels::observations::Observed;
use crate::execute::settings::progress::NodeProgress;
use crate::execute::settings::stop::Stop;
use crate::fingerprint::{Digest, NodeKey, Reason, SeenSources};
use crate::operator::{Computed, Context, Inputs};
use crate::plan::{Input, Node};
use crate::spec::{OnError, service_of};
use crate::store::{CallCache, ColumnLineage, OutputRecord, Store, Written};

/// Everything needed to run one node.
pub(crate) struct NodeJob {
    pub(crate) run: Arc<Run>,
    pub(crate) place: usize,
    pub(crate) key: NodeKey,
    pub(crate) preimage: Value,
    pub(crate) parts: Parts,
    pub(crate) inputs: Vec<OutputRecord>,
    pub(crate) reasons: Vec<Reason>,
    pub(crate) recall: bool,
    pub(crate) session: EndpointSession,
    /// The remembered calls to the node's model.
    pub(crate) calls: Option<Arc<CallCache>>,
    /// The remembered observations of its services.
    pub(crate) observed: Observed,
}

impl NodeJob {
    pub(crate) fn node(&self) -> &Node {
        self.run.node(self.place)
    }

    /// Returns the inputs of the kernel with their artifacts: all but those of services.
    pub(super) fn kernel_inputs(&self) -> impl Iterator<Item = (&Input, &OutputRecord)> {
        self.node().inputs.iter().zip(&self.inputs).filter(|(input, _)| service_of(&input.port).is_none())
    }

    /// Returns the row limit of the node, if it is a source.
    pub(crate) fn limit(&self) -> Option<u64> {
        let node = self.node();
        if node.inputs.is_empty() { self.run.options.asked.limit.of(node.id()) } else { None }
    }

    /// Whether known parts of the row input are skipped. Not after an output was found damaged: the reused parts may be
    /// the damaged ones.
    pub(crate) fn recall_blocks(&self) -> bool {
        self.recall && !self.reasons.iter().any(|reason| matches!(reason, Reason::ArtifactCorrupt { .. }))
    }

    /// Returns the digests shared by all rows, and by all parts, of the row input.
    pub(crate) fn bases(&self) -> (Digest, Digest) {
        let node = self.node();
        (self.parts.row_base(node), self.parts.block_base(node))
    }
}

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
    pub(crate) stop: Stop,
    pub(crate) progress: Arc<NodeProgress>,
    pub(crate) store: Store,
    /// The remembered calls to the node's model.
    pub(crate) calls: Option<Arc<CallCache>>,
    /// The remembered observations of its services.
    pub(crate) observed: Observed,
    /// The sources as the key saw them.
    pub(crate) sources: Arc<SeenSources>,
}

impl KernelRun {
    /// Returns the stamp before which rows and answers do not count.
    pub(crate) fn since(&self) -> Result<u64, OperatorError> {
        Ok(self.store.floor(&self.row_base)?.since)
    }
}

/// The result of a kernel run. A worker reports it in this form.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ran {
    #[serde(flatten)]
    pub(crate) written: Written,
    #[serde(flatten)]
    pub(crate) rows: RowsRun,
    pub(crate) computed: Computed,
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
