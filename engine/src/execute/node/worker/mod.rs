//! Nodes in separate processes: nodes with GPUs (in a program built for CUDA) and nodes marked `isolate: true` (if the
//! run has a worker program). Nodes that ask an endpoint stay in the parent, because budget and rate limits belong to
//! it.
//!
//! The parent keeps all decisions: keys, leases, retries, the result record. The child gets one task as a file:
//! operator, params with defaults, artifact ids, seed, bases of the memos, and the sources as the key saw them. It
//! opens the operator, and writes and commits the outputs to the same store. It reports progress, a heartbeat every
//! second, and the result as JSON lines on stdout.
//!
//! The child exits when its stdin ends, so it does not outlive its parent. A child without output for 5 minutes counts
//! as dead (`Workers::silence`). A child that dies is started once more if that can help.
//!
//! A GPU is leased by a file lock of the machine, not of the store, so that runs with different stores share GPUs.

mod contract;
mod serve;
mod supervise;

pub use serve::WorkerPipes;
pub(crate) use serve::work;
pub(super) use supervise::run_in_worker;
