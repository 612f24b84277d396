//! Runs a plan: a pure scheduler, and a thin driver that looks results up, runs kernels and commits.
//!
//! # From a plan to a record
//!
//! 1. `scheduler` says which node is next: events in, commands out. No clock, no threads, no I/O. `resources` counts
//!    jobs, memory and GPUs.
//! 2. `driver` carries out the commands. It never blocks: work that reads files or waits runs elsewhere and reports
//!    over one channel. `run` holds what all nodes of a run share.
//! 3. `decide` says what becomes of a node, and why: cached, runs, waits, held (it would run but was not chosen),
//!    frozen. `run`, `plan`, `why`, `status` and the checks before a run use this one function. `identity` gathers the
//!    key, and `lookup` asks the store. A node that waits is compared with its last run as far as its preimage is
//!    known.
//! 4. `node` takes the lease, looks again for a result of another process, and compares the inputs with their digests.
//! 5. `compute` prepares checkpoint, pieces and floor, and gives them to `executor` (this process or a worker).
//!    Then it checks that no source changed (`watch`) and records the result.
//!    `service` runs the node's servers meanwhile.
//! 6. `driver::settle` delivers outputs and records the node in the ledger (`books`), or starts it again: after damaged
//!    inputs (`repeats`), changed sources, or a takeover by another machine (`tenure`).
//!
//! `kernel` chooses how a kernel runs: `map`, `rows` or `query`. `map` cuts the outputs where a part of the input ends,
//! and stores the result of each part under its block key. A part that reappears is not mapped: its outputs are linked
//! from the artifact that contains them (`store::block`). A full run gives the same bytes.
//!
//! # Rows and calls
//!
//! `rows` starts rows in order. They finish in any order, are cached when they finish, and are written in input order.
//! A failed row becomes a row of `rejects`. The node's result is recorded, and the next run of an external node tries
//! only the failed rows again and pays only for them.
//!
//! `row_calls` is the journal of `Context::call`. `work` tells `plan` which cached rows leave calls to make, and what
//! such rows cost before. `rehearse` runs the kernel with a budget of 0 calls to count rows whose answers are all
//! cached. `endpoints` holds limiters, budget and caches of calls.
//!
//! # Released outputs
//!
//! `lookup` counts a result whose folders were released (`store::release`) as known, unless the node is asked for. A node
//! that runs and finds such an input lets its maker run again first, like one that finds damage, back to the nearest one
//! whose inputs are here. `kept` says which folders of middle rounds a run may release, and `driver::release` does it.
//!
//! # Delivery
//!
//! `loss` decides whether outputs are delivered. On the worst path to a node, at most `max_reject_share` of the rows
//! may be lost, and some must be left. Otherwise the node is held back (exit code 3). `deliver` writes the outputs.
//!
//! # Checks
//!
//! `checks` evaluates the `checks:` of a node once its result is known, cached or not, before anything is delivered. A
//! failed check fails the node, holds back what is delivered behind it, or is only reported. The result stays in the
//! store. The run's record has the outcomes; the next run evaluates a check again only if the check or the table changed.
//!
//! # Stopping
//!
//! On the first Ctrl-C or SIGTERM, a run starts nothing new and finishes what is in flight. A kernel that can resume
//! sees `Context::is_draining`, saves its state and ends. On the second, the run stops.
//!
//! # Output
//!
//! All output about a run is an `Event` (`report`): one stream for the terminal, for `--json` and for `events.jsonl`
//! (with times). Results go to stdout, everything else to stderr.
//!
//! # Audit
//!
//! `replay` recomputes recorded results in a separate store, `spot` checks single rows, and `answers` compares external
//! rows with the cached answers.

mod decide;
mod driver;
mod node;
mod survey;
mod audit;
mod settings;
mod process;
mod kernels;

pub use audit::replay::{ReplayOptions, replay};
pub use decide::diff_known;
pub use decide::identity::{Known, node_key};
pub use driver::run;
pub(crate) use kernels::query::{collect, register};
pub use node::worker::{Device, NO_GPU, WorkerPipes, Workers, devices, work};
pub use process::group_guard::{Guard, end_group};
pub use process::program::{Tail, program};
pub use process::versions::version as program_version;
pub use settings::clock::unix_time;
pub use settings::options::{Chosen, RunOptions, Settings, Trial};
pub use settings::request::{Request, Retry};
pub use settings::resources::Machine;
pub use settings::stop::Stop;
pub use survey::estimate::{Basis, Work};
pub use survey::{NodeStatus, Survey, failed_rows, not_known, survey};
