//! Scheduled pipelines: decides what is due, waits, runs, and what the daemon must do.
//!
//! [`step`] is pure: state, time and event in, state and actions out. No clock, no threads, no files. Daylight saving
//! time, absences and kills are therefore unit tests.
//!
//! The daemon in `src/schedule` passes events in, stores the state (flushed, renamed), and only then acts. A run is
//! recorded before its process starts, so that the next daemon knows what a killed daemon had started.
//!
//! Ticks up to `accounted` are done. Later ticks are computed from the cron line, so the state contains no future
//! ticks. Jitter is a function of name and tick. `spec::cadence` describes daylight saving time.

mod health;
mod notice;
mod state;
mod step;
#[cfg(test)]
mod tests;

pub use health::{Failing, failing};
pub use notice::Notice;
pub use state::{
    Cause, Counts, Daemon, Ended, Ending, Note, Outcome, Process, Running, Stage, State, StopReason, Ticket,
};
pub use step::{Action, Event, Found, Moment, jittered, next_wake, step};
