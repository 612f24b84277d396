//! All that the outside is told about a run.

mod event;

pub use event::{Event, Reporter, RunSummary};
