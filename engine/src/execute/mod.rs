//! Runs a plan: a pure scheduler, and a thin driver that looks results up, runs kernels and commits.
//!
//! # From a plan to a record
//!
//! 1. `driver::scheduler` says which node is next: events in, commands out. No clock, no threads, no I/O.
//!    `settings::resources` counts jobs, memory and GPUs.
//! 2. `driver` carries out the commands. It never blocks: work that reads files or waits runs elsewhere and reports
//!    over one channel. `node::job::Run` holds what all nodes of a run share.
//! 3. `decide` says what becomes of a node, and why: cached, runs, waits, held (it would run but was not chosen),
//!    frozen. `run`, `plan`, `why`, `status` and the checks before a run use this one function. `decide::Parts`
//!    gathers the key, and `decide::look_up` asks the store. A node that waits is compared with its last run as far as
//!    its preimage is known.
//! 4. `node` takes the lease, looks again for a result of another process, and compares the inputs with their digests.
//! 5. It prepares checkpoint, pieces and floor, and gives them to `node::executor` (this process or a worker), which runs
//!    the kernel (`kernels`). Then it checks that no source changed, and records the result. `node::service` runs the
//!    node's servers meanwhile.
//! 6. `node::result_checks` evaluates the checks of the result, and `node::deliver` delivers it.
//! 7. `driver` records the node in the run's history (`driver::run_log`), or starts it again: after damaged inputs
//!    (`driver::recompute`), changed sources, or a takeover by another machine (`node::lease_check`).
//!
//! `survey` predicts a run without running it. `audit` looks at recorded results again.
//!
//! # Released outputs
//!
//! `decide::look_up` counts a result whose folders were released (`store::gc::release`) as known, unless the node is
//! asked for. A node that runs and finds such an input lets its maker run again first, like one that finds damage, back
//! to the nearest one whose inputs are here. `driver::release_policy` says which folders of middle rounds a run may
//! release, and `driver::release` does it.
//!
//! # Delivery
//!
//! `node::reject_share` decides whether outputs are delivered. On the worst path to a node, at most `max_reject_share`
//! of the rows may be lost, and some must be left. Otherwise the node is held back (exit code 3).
//!
//! # Checks
//!
//! The `checks:` of a node are evaluated once its result is known, cached or not, before anything is delivered. A
//! failed check fails the node, holds back what is delivered behind it, or is only reported. The result stays in the
//! store. The run's record has the outcomes; the next run evaluates a check again only if the check or the table
//! changed.
//!
//! # Stopping
//!
//! After `Stop::drain`, a run starts nothing new and finishes what is in flight. A kernel that can resume sees
//! `Context::is_draining`, saves its state and ends. After `Stop::cancel`, the run stops. The program `searchmill` calls
//! them on the first and the second Ctrl-C or SIGTERM.
//!
//! # Output
//!
//! All output about a run is an `Event` (`events`): one stream for the terminal, for `--json` and for `events.jsonl`
//! (with times). Results go to stdout, everything else to stderr.

// The order is the order of use: a room uses what stands above it.
mod settings;
mod process;
mod decide;
mod kernels;
mod node;
mod survey;
mod driver;
mod audit;

pub(crate) use audit::replay::{ReplayOptions, replay};
pub(crate) use decide::diff_known;
pub use decide::{Known, node_key};
pub(crate) use driver::run;
pub(crate) use kernels::query::{collect, register};
pub use node::worker::WorkerPipes;
pub(crate) use node::worker::work;
pub use process::{GroupGuard, Tail, end_group, program, version as program_version};
pub(crate) use settings::device::NO_GPU;
pub use settings::device::{Device, Workers, devices};
pub use settings::options::RunOptions;
pub(crate) use settings::options::{Chosen, Request, Settings};
pub use settings::resources::Machine;
pub use settings::{Stop, unix_time};
pub use survey::estimate::{Basis, Work};
pub use survey::{NodeStatus, Survey};
pub(crate) use survey::{failed_rows, not_known, survey};
