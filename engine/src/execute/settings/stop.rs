//! Stops a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
