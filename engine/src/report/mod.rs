//! Reports about a run, for terminals, logs and other programs.

mod event;

pub use event::{Event, Reporter, RunSummary};
