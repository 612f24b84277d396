//! Wall-clock time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current Unix time in seconds.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
