//! A node to be run: what is settled before it, all that it needs, and the result of its kernel.

use crate::plan::NodeIndex;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::run::Run;
use crate::endpoint::EndpointSession;
use crate::execute::decide::identity::{Known, Parts};
use crate::execute::kernels::kernel_run::RowsRun;
use crate::execute::kernels::observations::Observations;
use crate::fingerprint::{Digest, NodeKey, Reason};
use crate::operator::Computed;
use crate::plan::{Input, Node};
use crate::spec::service_of;
use crate::store::{CallCache, OutputRecord, Written};

/// What is settled before a node starts.
#[derive(Default)]
pub(crate) struct Upstream {
    /// Outputs of the nodes that it reads; if it delivers outputs, of all nodes before it.
    pub(crate) known: Known,
    /// Keys of the same nodes.
    pub(crate) keys: BTreeMap<NodeIndex, NodeKey>,
    /// The failed check before it that holds back what it delivers.
    pub(crate) held: Option<String>,
}

/// Everything needed to run one node.
pub(crate) struct NodeJob {
    pub(crate) run: Arc<Run>,
    pub(crate) index: NodeIndex,
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
    pub(crate) observed: Observations,
}

impl NodeJob {
    pub(crate) fn node(&self) -> &Node {
        self.run.node(self.index)
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

/// The result of a kernel run. A worker reports it in this form.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ran {
    #[serde(flatten)]
    pub(crate) written: Written,
    #[serde(flatten)]
    pub(crate) rows: RowsRun,
    pub(crate) computed: Computed,
}
