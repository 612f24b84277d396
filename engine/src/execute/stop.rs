//! How a run is told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a run is told to stop, from outside. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    draining: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
    pub(super) notify: Arc<tokio::sync::Notify>,
}

impl Stop {
    /// Start nothing new; finish what is in flight.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Stop as soon as possible.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.drain();
    }

    /// Is the run winding down?
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Is the run to stop at once?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }
    pub(super) fn drain_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.draining)
    }
}
