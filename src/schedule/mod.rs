//! The daemon of `schedule`: a thin driver around [`searchmill_engine::schedule::step`], which decides everything.
//!
//! Each run is a process of its own, in its own process group: a run that crashes, leaks or is killed leaves the daemon
//! alone, and a daemon that is killed leaves its runs alone.

mod child;
mod daemon;
mod endpoint;
mod process;
mod served;

pub(crate) use daemon::{Settings, serve};
pub(crate) use served::Scheduled;

use std::time::{Duration, SystemTime};

use searchmill_engine::Time;

/// The time, in whole milliseconds.
pub(crate) fn now() -> Time {
    let now = Time::from(SystemTime::now());
    now - Duration::from_nanos(u64::from(now.timestamp_subsec_nanos() % 1_000_000))
}
