//! Pipelines that run by themselves: what is due, what waits, what runs, and what is to be done about it.
//!
//! [`step`] is pure: state, time and event in, state and actions out. No clock, no threads, no files; the daemon that
//! acts on it keeps the state on disk before it acts, so that a killed daemon knows what it had begun.

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
