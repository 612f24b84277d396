//! What the life of a node works with: its run, what is settled before it, its job, and what comes of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::endpoints::Endpoints;
use crate::endpoint::EndpointSession;
use crate::error::OperatorError;
use crate::events::Reporter;
use crate::execute::decide::{History, Known, Parts};
use crate::execute::kernels::call_journal::Observations;
use crate::execute::kernels::kernel_run::RowsRun;
use crate::execute::settings::Stop;
use crate::execute::settings::options::Settings;
use crate::execute::settings::progress::NodeProgress;
use crate::fingerprint::{Digest, NodeKey, Reason, SourceDigests};
use crate::operator::{Computed, Context, ContextParts, ProgressSink};
use crate::plan::{Input, Node, NodeIndex, Plan};
use crate::spec::service_of;
use crate::store::{CallCache, Damage, NodeResult, NodeRun, OutputRecord, RunWriter, Store, StoreError, Written};

/// Rows in flight of an external node (default).
const CONCURRENCY: usize = 16;

/// A run in progress: what all nodes share. Usable from any thread.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) id: String,
    /// Start time: Unix time in nanoseconds, like the stamps of remembered rows and answers.
    pub(crate) started: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) store: Store,
    pub(crate) options: Arc<Settings>,
    pub(crate) reporter: Arc<dyn Reporter>,
    pub(crate) stop: Stop,
    pub(crate) http: reqwest::Client,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) history: Arc<History>,
    pub(crate) sources: Arc<SourceDigests>,
    /// The records of the run's nodes.
    pub(crate) records: Arc<Mutex<RunWriter>>,
}

impl Run {
    /// Returns the node at that index of the plan.
    pub(crate) fn node(&self, index: NodeIndex) -> &Node {
        &self.plan[index]
    }

    /// Records that a node starts, and flushes: a killed run leaves a record of its started nodes, which also marks the
    /// cached results that it used so far as in use.
    pub(super) fn begin(&self, begun: &NodeRun) -> Result<(), StoreError> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.node(begun)?;
        records.flush()
    }

    /// Returns the run-level parts of a node's context.
    pub(super) fn context_parts(&self, node: &Node, progress: &Arc<NodeProgress>) -> ContextParts {
        let (resources, options) = (node.spec.resources, &self.options);
        ContextParts {
            seed: node.spec.seed,
            cancelled: Arc::clone(&self.stop.cancelled),
            memory: resources.memory,
            threads: resources.threads.unwrap_or(options.machine.threads),
            concurrency: resources.concurrency.unwrap_or(CONCURRENCY),
            processes: resources.concurrency.or(resources.threads),
            retry: node.spec.retry,
            secrets: Arc::clone(&options.secrets),
            progress: Arc::clone(progress) as Arc<dyn ProgressSink>,
            ..ContextParts::bare(&options.directory, &tokio::runtime::Handle::current(), self.http.clone())
        }
    }

    /// Returns a context without a scratch folder, for work outside the node's run: fetching sources, delivering outputs.
    pub(super) fn bare_context(&self, node: &Node) -> Context {
        let progress = Arc::new(NodeProgress::new(node.id(), Arc::clone(&self.reporter)));
        let redactor = self.endpoints.redactor.clone();
        let parts = ContextParts { scratch: self.store.root().join("tmp"), ..self.context_parts(node, &progress) };
        Context::new(parts).with_session(EndpointSession { redactor, ..EndpointSession::default() })
    }
}

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
        self.run.options.request().rows_of(self.node())
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

/// The result of a node, once it is known.
#[derive(Clone, Default)]
pub(crate) struct KnownResult {
    pub(crate) key: Option<NodeKey>,
    pub(crate) outputs: IndexMap<String, OutputRecord>,
    pub(crate) figures: BTreeMap<String, f64>,
    /// The kernel run that made it; `None`: it is from the store, or from a test.
    pub(crate) fresh: Option<Box<Fresh>>,
}

/// A kernel run of this run that made a result.
#[derive(Clone)]
pub(crate) struct Fresh {
    /// Its record without outputs and figures.
    pub(crate) record: NodeResult,
    pub(crate) reasons: Vec<Reason>,
    pub(crate) cached_rows: u64,
    /// Rows that were not asked because a budget was used up.
    pub(crate) unasked: u64,
}

impl KnownResult {
    /// A result that the store has.
    pub(super) fn stored(result: NodeResult) -> Self {
        Self { key: Some(result.key), outputs: result.outputs, figures: result.figures, fresh: None }
    }

    /// Returns why the kernel ran in this run, and for how long.
    pub(crate) fn ran(&self) -> (Vec<Reason>, f64) {
        self.fresh.as_ref().map_or((Vec::new(), 0.0), |fresh| (fresh.reasons.clone(), fresh.record.seconds))
    }
}

/// How the life of a node ended, if not with a result that is checked and delivered.
pub(crate) enum Ending {
    /// It did not start, because the run was stopped.
    NotStarted,
    /// Its input at this position is damaged.
    DamagedInput(usize, Damage),
    /// A table of its own was found damaged after the result was known.
    DamagedOutput(Damage),
    /// Another machine took it over while this one was suspended.
    TakenOver,
    /// It has no result.
    Failed(OperatorError),
    /// It has a result, and failed a check or could not be checked.
    CheckFailed(KnownResult, OperatorError),
    /// It has a result, which could not be delivered.
    Undelivered(OperatorError),
    /// It has a result; its checks or its delivery were interrupted.
    Interrupted(KnownResult),
    /// The store cannot be used: the run ends.
    StoreFailed(StoreError),
}
