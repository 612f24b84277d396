//! Scheduled pipelines: decides what is due, waits, runs, and what the daemon must do.
//!
//! [`step`] is pure: state, time and event in, state and actions out. No clock, no threads, no files. The daemon stores
//! the state before it acts, so that its successor knows what a killed daemon had started.

mod arrivals;
mod notice;
mod state;
mod step;
#[cfg(test)]
mod tests;

pub use arrivals::jittered;
pub use notice::Notice;
pub use state::{Cause, Counts, Daemon, Ended, Outcome, Process, Running, Stage, State, StopReason, Ticket};
pub use step::{Action, Ending, Event, Found, Moment, next_wake, step};
