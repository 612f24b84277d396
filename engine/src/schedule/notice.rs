//! What a schedule has to say: one kind of line for the log, for `--json` and for tests.

use serde::Serialize;

use super::state::{Cause, Outcome, StopReason};
use crate::spec::Time;

/// Something worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Notice {
    /// A run of an earlier daemon is still going.
    Adopted {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
    },
    /// Ticks that nobody was there for.
    Missed {
        /// How many; with `more`, at least.
        ticks: usize,
        /// Were there more than were counted?
        more: bool,
        /// The first of those counted.
        first: Time,
        /// The last one.
        last: Time,
        /// How many of them will be made up for.
        made_up: usize,
    },
    /// A tick that came while a run was going, and does nothing.
    Skipped {
        /// The tick.
        tick: Time,
    },
    /// A tick that came while the schedule was paused.
    Paused {
        /// The tick.
        tick: Time,
    },
    /// A run waits for its turn.
    Queued {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
        /// Runs that wait now.
        waiting: usize,
    },
    /// A run begins.
    Starting {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
        /// Why.
        cause: Cause,
    },
    /// A run was told to stop.
    StoppingRun {
        /// Its ticket.
        id: u64,
        /// Why.
        reason: StopReason,
        /// 1: finish what is in flight; 2: stop at once; 3: killed.
        signal: u8,
    },
    /// A run has ended.
    Ended {
        /// Its ticket.
        id: u64,
        /// Its tick.
        tick: Time,
        /// How.
        outcome: Outcome,
        /// Exit code, where there was one.
        exit: Option<i32>,
        /// The run in the store, if it got that far.
        run: Option<String>,
        /// Nodes whose result was known.
        cached: u64,
        /// Nodes that ran.
        finished: u64,
        /// Calls to the outside.
        calls: u64,
        /// Whole seconds it took.
        seconds: i64,
        /// What it said last, when it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// The cron line or its time zone is another one than before: ticks are counted from now on.
    Changed {
        /// The new line.
        cron: String,
        /// Its time zone.
        timezone: String,
    },
    /// The clock was set back by more than an hour: ticks are counted from now on.
    ClockSetBack {
        /// All ticks up to here had been accounted for.
        accounted: Time,
    },
}
