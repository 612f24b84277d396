//! All that the outside is told about a run.

mod event;
mod time;

pub use event::{Event, Reporter, RunSummary};
pub use time::Utc;
