//! Runs a plan: a pure scheduler, and a thin driver that looks results up, runs kernels and commits.

mod columns;
mod deliver;
mod driver;
mod ending;
mod endpoints;
mod identity;
mod kernel;
mod loss;
mod map;
mod node;
mod progress;
mod query;
mod recorded;
mod replay;
mod resolve;
mod resources;
mod rows;
mod run_id;
mod scheduler;
mod spot;
mod survey;
mod work;
mod worker;

pub use driver::{RunOptions, Stop, run, unix_time};
pub use ending::exit_code;
pub use replay::{ReplayOptions, replay};
pub use resources::Machine;
pub use survey::{NodeStatus, Survey, failed_rows, not_known, survey};
pub use work::{Basis, Work};
pub use worker::{Device, NO_GPU, WorkerPipes, Workers, devices, work};
