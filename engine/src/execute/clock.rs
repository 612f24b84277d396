//! Wall-clock time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current Unix time in seconds.
#[must_use]
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
