//! Reports about a run, for terminals, logs and other programs.

mod event;
mod lines;

pub use event::{Event, RejectReason, Reporter, RunSummary};
pub use lines::Lines;
