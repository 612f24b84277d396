//! Nodes in separate processes: nodes with GPUs (in a program built for CUDA) and nodes marked `isolate: true` (if the
//! run has a worker program). Nodes that ask an endpoint stay in the parent, because budget and rate limits belong to
//! it.
//!
//! The parent keeps all decisions: keys, leases, retries, the result record. The child gets one task as a file:
//! operator, params with defaults, artifact ids, seed, bases of the memos, and the sources as the key saw them. It
//! opens the operator, and writes and commits the outputs to the same store. It reports progress, a heartbeat every
//! second, and the result as JSON lines on stdout. [`WorkerTask`] and [`Message`] are this contract.
//!
//! The child exits when its stdin ends, so it does not outlive its parent. A child without output for 5 minutes counts
//! as dead (`Workers::silence`). A child that dies is started once more if that can help.
//!
//! A GPU is leased by a file lock of the machine, not of the store, so that runs with different stores share GPUs.

mod serve;
mod supervise;

use std::path::PathBuf;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::job::Ran;
use crate::error::OperatorError;
use crate::fingerprint::{Digest, NodeKey, SeenSource};
use crate::node_id::NodeId;
use crate::operator::RetryPolicy;
use crate::spec::OnError;
use crate::store::{ArtifactId, ArtifactType};

pub use serve::WorkerPipes;
pub(crate) use serve::work;
pub(super) use supervise::run_in_worker;

/// Protocol version; parent and worker must have the same.
const CONTRACT: u32 = 3;

/// One node to run.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerTask {
    contract: u32,
    store: PathBuf,
    key: NodeKey,
    node: NodeId,
    operator: String,
    version: u32,
    params: Value,
    seed: u64,
    /// Input ports and their artifacts, in order.
    inputs: Vec<(String, ArtifactId)>,
    outputs: IndexMap<String, ArtifactType>,
    main_port: Option<String>,
    row_base: Digest,
    block_base: Digest,
    recall: bool,
    recall_blocks: bool,
    on_error: OnError,
    limit: Option<u64>,
    directory: PathBuf,
    threads: usize,
    concurrency: usize,
    processes: Option<usize>,
    memory: Option<u64>,
    gpus: u32,
    retry: RetryPolicy,
    /// The node's sources as the key saw them.
    sources: Vec<SeenSource>,
}

/// A message of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "snake_case")]
enum Message {
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
