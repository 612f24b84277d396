//! The door to the engine: [`Session`] checks, plans, runs and audits pipelines.

mod failure;
mod place;
mod open;
mod pipeline;
mod options;
mod preflight;
mod run;
mod ask;
mod find;
mod show;
mod history;
mod keep;
mod trace;
mod audit;
#[cfg(test)]
mod tests;

pub use ask::Why;
pub use audit::{Audit, AuditOptions};
pub use failure::Failure;
pub use history::PastRun;
pub use open::Session;
pub use options::RunOptions;
pub use pipeline::Pipeline;
pub use place::StorePlace;
pub use preflight::{UnsetSecrets, cuda_worker, visible_devices};
pub use run::PreparedRun;
pub use show::Shown;
pub use trace::{Direction, Trace};
