//! The messages between parent and worker: a task as a JSON file, then one JSON object per line.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::execute::job::Ran;
use crate::execute::rows::RowsRun;
use crate::fingerprint::{Digest, NodeKey, SeenSource};
use crate::operator::{Blame, Computed, OperatorError, RetryPolicy, Usage};
use crate::spec::OnError;
use crate::store::{ArtifactId, ArtifactType, ColumnLineage, OutputRecord, Written};

/// Protocol version; parent and worker must have the same.
pub(super) const CONTRACT: u32 = 3;

/// One node to run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) contract: u32,
    pub(super) store: PathBuf,
    pub(super) key: NodeKey,
    pub(super) node: String,
    pub(super) operator: String,
    pub(super) version: u32,
    pub(super) params: Value,
    pub(super) seed: u64,
    /// Input ports and their artifacts, in order.
    pub(super) inputs: Vec<(String, ArtifactId)>,
    pub(super) outputs: IndexMap<String, ArtifactType>,
    pub(super) main_port: Option<String>,
    pub(super) row_base: Digest,
    pub(super) block_base: Digest,
    pub(super) recall: bool,
    pub(super) recall_blocks: bool,
    pub(super) on_error: Failing,
    pub(super) limit: Option<u64>,
    pub(super) directory: PathBuf,
    pub(super) threads: usize,
    pub(super) concurrency: usize,
    pub(super) memory: Option<u64>,
    pub(super) gpus: u32,
    pub(super) retry: Retry,
    /// The node's sources as the key saw them.
    pub(super) sources: Vec<SeenSource>,
}

/// [`OnError`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Failing {
    Fail,
    DeadLetter,
    Drop,
}

impl From<OnError> for Failing {
    fn from(on_error: OnError) -> Self {
        match on_error {
            OnError::Fail => Self::Fail,
            OnError::DeadLetter => Self::DeadLetter,
            OnError::Drop => Self::Drop,
        }
    }
}

impl From<Failing> for OnError {
    fn from(failing: Failing) -> Self {
        match failing {
            Failing::Fail => Self::Fail,
            Failing::DeadLetter => Self::DeadLetter,
            Failing::Drop => Self::Drop,
        }
    }
}

/// [`RetryPolicy`] on the wire.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Retry {
    max_attempts: u32,
    backoff: Duration,
    max_backoff: Duration,
}

impl From<RetryPolicy> for Retry {
    fn from(policy: RetryPolicy) -> Self {
        let RetryPolicy { max_attempts, backoff, max_backoff } = policy;
        Self { max_attempts, backoff, max_backoff }
    }
}

impl From<Retry> for RetryPolicy {
    fn from(retry: Retry) -> Self {
        let Retry { max_attempts, backoff, max_backoff } = retry;
        Self { max_attempts, backoff, max_backoff }
    }
}

/// A message of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "snake_case")]
pub(super) enum Message {
    /// Heartbeat.
    Beat {
        /// Memory used, in bytes.
        memory: u64,
    },
    /// Progress of the node.
    Progress { done: u64, total: u64, unit: String, cached: u64 },
    /// A line for the node's log.
    Log { line: String },
    /// The outputs are committed.
    Done(Box<Done>),
    /// The node failed with an error.
    Failed { blame: String, message: String, help: Option<String> },
}

/// The result of a finished task.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Done {
    outputs: IndexMap<String, OutputRecord>,
    figures: BTreeMap<String, f64>,
    summary: String,
    calls: u64,
    prompt_tokens: u64,
    #[serde(default)]
    cost_nanos: u64,
    completion_tokens: u64,
    cached_rows: u64,
    dropped: u64,
    stopped: bool,
    memo: Option<Digest>,
    #[serde(default)]
    since: u64,
    columns: BTreeMap<String, ColumnLineage>,
    computed: Computed,
}

impl Done {
    pub(super) fn new(Ran { written, rows, computed }: Ran) -> Self {
        Self {
            computed,
            outputs: written.outputs,
            figures: written.figures,
            summary: written.summary,
            calls: rows.usage.calls,
            prompt_tokens: rows.usage.prompt_tokens,
            cost_nanos: rows.usage.cost_nanos,
            completion_tokens: rows.usage.completion_tokens,
            cached_rows: rows.cached_rows,
            dropped: rows.dropped,
            stopped: rows.stopped,
            memo: rows.memo,
            since: rows.since,
            columns: rows.columns,
        }
    }

    pub(super) fn unpack(self) -> Ran {
        let (calls, prompt_tokens, completion_tokens) = (self.calls, self.prompt_tokens, self.completion_tokens);
        let cost_nanos = self.cost_nanos;
        let rows = RowsRun {
            usage: Usage { calls, prompt_tokens, completion_tokens, cost_nanos },
            cached_rows: self.cached_rows,
            dropped: self.dropped,
            stopped: self.stopped,
            memo: self.memo,
            since: self.since,
            columns: self.columns,
            ..RowsRun::default()
        };
        // The worker stores the blocks itself.
        let (outputs, figures, summary) = (self.outputs, self.figures, self.summary);
        let written = Written { outputs, figures, summary, blocks: Vec::new() };
        Ran { written, rows, computed: self.computed }
    }
}

const BLAMES: [(Blame, &str); 6] = [
    (Blame::Pipeline, "pipeline"),
    (Blame::Data, "data"),
    (Blame::Machine, "machine"),
    (Blame::Engine, "engine"),
    (Blame::Cancelled, "cancelled"),
    (Blame::Changed, "changed"),
];

impl From<&OperatorError> for Message {
    fn from(error: &OperatorError) -> Self {
        let blame = BLAMES.iter().find(|(blame, _)| *blame == error.blame).map_or("engine", |(_, name)| name);
        Self::Failed { blame: blame.to_owned(), message: error.message.clone(), help: error.help.clone() }
    }
}

/// Returns the error that a worker reported.
pub(super) fn told_error(blame: &str, message: String, help: Option<String>) -> OperatorError {
    let blame = BLAMES.iter().find(|(_, name)| *name == blame).map_or(Blame::Engine, |(blame, _)| *blame);
    OperatorError { blame, message, help }
}
