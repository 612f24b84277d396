//! Runs a plan: a pure scheduler, and a thin driver that looks results up, runs kernels and commits.

mod answers;
mod columns;
mod decide;
mod deliver;
mod driver;
mod endpoints;
mod identity;
mod kernel;
mod loss;
mod map;
mod node;
mod progress;
mod query;
mod recorded;
mod rehearse;
mod replay;
mod resources;
mod row_calls;
mod rows;
mod run_id;
mod scheduler;
mod spot;
mod survey;
mod tenure;
mod work;
mod worker;

pub use decide::{Request, Retry, diff_known, preimage_of};
pub use driver::{RunOptions, Stop, exit_code, run, unix_time};
pub use replay::{ReplayOptions, replay};
pub use resources::Machine;
pub use survey::{NodeStatus, Survey, failed_rows, not_known, survey};
pub use work::{Basis, Work};
pub use worker::{Device, NO_GPU, WorkerPipes, Workers, devices, work};
