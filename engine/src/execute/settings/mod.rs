//! What a run is told, and what it has: options, which nodes are asked for, the machine, the order to stop, the clock.

pub(super) mod stop;
pub(super) mod progress;
pub(super) mod resources;
pub(super) mod device;
pub(super) mod options;

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current Unix time in seconds.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
