//! What a run is told, and what it has: options, which nodes are asked for, the machine, the order to stop, the clock.

pub(super) mod progress;
pub(super) mod resources;
pub(super) mod device;
pub(super) mod options;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current Unix time in seconds.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Stops a run from outside. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    pub(crate) draining: Arc<AtomicBool>,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) notify: Arc<tokio::sync::Notify>,
}

impl Stop {
    /// Starts no further nodes or rows and finishes those in flight.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Stops as soon as possible.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.drain();
    }

    /// Whether the run starts nothing new.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Whether the run stops immediately.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}
