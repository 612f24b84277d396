//! Runs a plan: a pure scheduler, and a thin driver that looks results up, runs kernels and commits.

mod columns;
mod deliver;
mod driver;
mod endpoints;
mod identity;
mod kernel;
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
mod stop;
mod survey;
mod versions;
mod watch;
mod work;
mod worker;

pub use driver::{RunOptions, Stop, exit_code, run, unix_time};
pub use identity::{Known, node_key};
pub use replay::{ReplayOptions, replay};
pub use resources::Machine;
pub use survey::{NodeStatus, Survey, failed_rows, not_known, survey};
pub use versions::version as program_version;
pub use work::{Basis, Work};
pub use worker::{Device, NO_GPU, WorkerPipes, Workers, devices, work};
