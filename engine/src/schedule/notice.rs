//! Notices of a schedule: one format for the log, for `--json` and for tests.

use serde::Serialize;

use super::state::{Cause, Outcome, StopReason};
use crate::spec::Time;

/// A notice for the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Notice {
    /// A run of an earlier daemon is still running.
    Adopted {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
    },
    /// Ticks that were due while no daemon ran.
    Missed {
        /// Number of ticks; with `more`, at least that many.
        ticks: usize,
        /// Whether there were more than were counted.
        more: bool,
        /// The first counted tick.
        first: Time,
        /// The last counted tick.
        last: Time,
        /// Number of ticks that will be made up.
        made_up: usize,
    },
    /// A tick arrived during a run and is skipped.
    Skipped {
        /// The tick.
        tick: Time,
    },
    /// A tick arrived while the schedule was paused.
    Paused {
        /// The tick.
        tick: Time,
    },
    /// A run is queued.
    Queued {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
        /// Number of queued runs.
        waiting: usize,
    },
    /// A run starts.
    Starting {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
        /// The cause.
        cause: Cause,
    },
    /// A run is told to stop.
    StoppingRun {
        /// Its ticket.
        id: u64,
        /// The reason.
        reason: StopReason,
        /// 1: finish calls in flight; 2: stop immediately; 3: killed.
        signal: u8,
    },
    /// A run has ended.
    Ended {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
        /// The outcome.
        outcome: Outcome,
        /// Exit code, if any.
        exit: Option<i32>,
        /// The run in the store, if one was recorded.
        run: Option<String>,
        /// Nodes with a cached result.
        cached: u64,
        /// Nodes that ran.
        finished: u64,
        /// External calls.
        calls: u64,
        /// Duration in whole seconds.
        seconds: i64,
        /// Its last output, if it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// The cron line or time zone changed: ticks count from now on.
    Changed {
        /// The new cron line.
        cron: String,
        /// Its time zone.
        timezone: String,
    },
    /// The clock was set back by more than an hour: ticks count from now on.
    ClockSetBack {
        /// All ticks up to here were accounted for.
        accounted: Time,
    },
}
