//! Daemon of `schedule`: a thin driver around [`searchmill_engine::schedule::step`], which makes all decisions.
//!
//! Each run is a separate process in a separate process group. A run that crashes, leaks or is killed does not affect
//! the daemon, and runs survive if the daemon is killed.

mod child;
mod daemon;
mod endpoint;
mod process;
mod served;

pub(crate) use daemon::{Settings, serve};
pub(crate) use served::Scheduled;

use std::time::{Duration, SystemTime};

use searchmill_engine::Time;

/// The current time in whole milliseconds.
pub(crate) fn now() -> Time {
    let now = Time::from(SystemTime::now());
    now - Duration::from_nanos(u64::from(now.timestamp_subsec_nanos() % 1_000_000))
}
