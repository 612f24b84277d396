//! The messages between parent and worker: a task as a JSON file, then one JSON object per line.

use std::path::PathBuf;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::execute::job::Ran;
use crate::fingerprint::{Digest, NodeKey, SeenSource};
use crate::operator::{OperatorError, RetryPolicy};
use crate::spec::OnError;
use crate::store::{ArtifactId, ArtifactType};

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
    pub(super) on_error: OnError,
    pub(super) limit: Option<u64>,
    pub(super) directory: PathBuf,
    pub(super) threads: usize,
    pub(super) concurrency: usize,
    pub(super) processes: Option<usize>,
    pub(super) memory: Option<u64>,
    pub(super) gpus: u32,
    pub(super) retry: RetryPolicy,
    /// The node's sources as the key saw them.
    pub(super) sources: Vec<SeenSource>,
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
    Done(Box<Ran>),
    /// The node failed with an error.
    Failed(OperatorError),
}
