//! One fetch per artifact or memo: whoever needs what another thread or process of this machine is fetching waits for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use crate::fingerprint::{Digest, RowKey};
use crate::store::error::StoreError;
use crate::store::memo::in_flight::Asking;

/// Pause between two looks at whether another process still fetches.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for another process, which may be suspended. After that, both fetch.
const LONGEST: Duration = Duration::from_mins(10);

/// The last failure of a fetch; held while one is under way.
type Flight = Mutex<Option<(Instant, Arc<StoreError>)>>;

/// The fetches of this process.
#[derive(Default)]
pub(super) struct Flights(Mutex<BTreeMap<Digest, Arc<Flight>>>);

impl Flights {
    /// Fetches something when no other thread does. A failure is also that of the threads that waited for it: they do
    /// not wait for an unreachable store one after the other. Whoever asks later tries again.
    pub(super) fn once<T>(&self, what: &Digest, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let asked = Instant::now();
        let flight = Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(*what).or_default());
        aside(|| {
            let mut failure = flight.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((when, error)) = &*failure
                && *when >= asked
            {
                return Err(StoreError::Earlier(Arc::clone(error)));
            }
            let fetched = work().map_err(Arc::new);
            // With the time of the failure: whoever began to wait before it shares it.
            *failure = fetched.as_ref().err().map(|error| (Instant::now(), Arc::clone(error)));
            fetched.map_err(StoreError::Earlier)
        })
    }
}

/// The right of this process to fetch something. The operating system gives it back if the process dies.
pub(super) struct OnlyFetch(Asking, RowKey);

impl Drop for OnlyFetch {
    fn drop(&mut self) {
        self.0.end(&self.1);
    }
}

impl OnlyFetch {
    /// Waits until no other process of this machine fetches it into the store at `root`. Without locks of bytes, it waits
    /// for nobody.
    pub(super) fn of(root: &Path, what: &Digest) -> Self {
        let asking = Asking::at(&root.join("leases").join("fetches"));
        let (key, start) = (RowKey(*what), Instant::now());
        while !asking.begin(&key) && start.elapsed() < LONGEST {
            sleep(LOOK);
        }
        Self(asking, key)
    }
}

/// Runs code that may wait for long, so that the other tasks of this thread's runtime go on.
pub(super) fn aside<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => block_in_place(wait),
        _ => wait(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::OperatorError;
    use crate::fingerprint::hash_bytes;
    use crate::store::layout::Store;

    #[test]
    fn those_who_waited_for_a_failed_fetch_fail_with_it_and_the_next_one_tries_again() {
        let (flights, id, tries) = (Flights::default(), hash_bytes(b"a"), AtomicUsize::new(0));
        let fetch = |fails: bool| {
            flights.once(&id, || {
                tries.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(300));
                if fails { Err(StoreError::Machine(OperatorError::machine("unreachable"))) } else { Ok(()) }
            })
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| fetch(true).unwrap_err().to_string())).collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), "unreachable");
            }
        });
        assert_eq!(tries.load(Ordering::SeqCst), 1);
        fetch(false).unwrap();
        assert_eq!(tries.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn processes_fetch_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Store::open(folder.path()).unwrap(), Store::open(folder.path()).unwrap());
        let id = hash_bytes(b"a");
        let held = OnlyFetch::of(one.root(), &id);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let start = Instant::now();
                drop(OnlyFetch::of(other.root(), &id));
                start.elapsed()
            });
            sleep(Duration::from_millis(300));
            drop(held);
            assert!(waits.join().unwrap() >= Duration::from_millis(200));
        });
    }
}
