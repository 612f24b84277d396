//! All that the outside is told about a run.

mod event;
mod lines;

pub use event::{Event, Reporter, RunSummary};
pub use lines::Lines;
