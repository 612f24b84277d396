//! Daemon of `schedule`: a thin driver around [`searchmill_engine::schedule::step`], which makes all decisions.
//!
//! Each run is a child process (`searchmill run FILE --json --quiet`) in its own process group, not a task of the
//! daemon:
//!
//! - A run that crashes, hangs or runs out of memory does not affect other schedules.
//! - The daemon can be killed, replaced or upgraded while a run continues.
//! - Signals can enforce `max_runtime` (drain, stop, kill), and no finished row is lost.
//! - The run is what a user would start by hand: it reads the pipeline and the binary anew.
//!
//! The price is one process start per run.
//!
//! A run's output is its log. The daemon locks the log before it passes the open file to the run, so the lock lives
//! exactly as long as the run. A new daemon checks that lock to find running jobs. Without locks, and before every
//! signal, it compares process number and start time. It finds a process that was not noted in time by
//! `SEARCHMILL_RUN_LOG` in its environment. The run's own record in `runs/` says how it ended.
//!
//! One lease per schedule excludes a second daemon. Pausing and triggering write files to the store, so they work from
//! any terminal and survive a restart of the daemon.

mod child;
mod daemon;
mod endpoint;
mod notify;
mod process;
mod served;

pub(crate) use daemon::{Settings, serve};
pub(crate) use served::Scheduled;

use std::time::{Duration, SystemTime};

use searchmill_engine::{Cadence, Schedules, Time};
use serde_json::{Value, json};

/// The current time in whole milliseconds.
pub(crate) fn now() -> Time {
    let now = Time::from(SystemTime::now());
    now - Duration::from_nanos(u64::from(now.timestamp_subsec_nanos() % 1_000_000))
}

/// Describes a schedule, for `schedule list --json` and for the page; `None` if it was never served, or its state is
/// damaged.
pub(crate) fn schedule_json(schedules: &Schedules, name: &str) -> Option<Value> {
    let state = schedules.state(name)?;
    let served = schedules.is_served(name);
    let next = Cadence::recall(&state.cron, &state.timezone).and_then(|cadence| cadence.after(now()));
    Some(json!({
        "name": name,
        "file": state.file,
        "cron": state.cron,
        "timezone": state.timezone,
        "served": served,
        // A killed daemon leaves its entry in the state: it counts only while the lease is held.
        "daemon": state.daemon.as_ref().filter(|_| served),
        "paused": schedules.switch(name).paused,
        "next": next,
        "running": state.running,
        "waiting": state.waiting.len(),
        "last": state.ended.last(),
        "counts": state.counts,
    }))
}
