//! Decides whether this process may still make calls for a node. After a suspended machine wakes up, another one may
//! have counted it as dead and taken over its work: after a gap on the clock, the lease is checked before the next
//! call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Mutex;

use crate::endpoint::{CallPermit, FailureKind, RowFailure};
use crate::fingerprint::NodeKey;
use crate::store::{Lease, Store, StoreError};

/// A gap between calls after which the lease is checked. Other machines wait longer before they count a holder as dead.
const GAP: Duration = Duration::from_secs(8);

/// The right to compute a node while its lease is held.
pub(crate) struct LeaseCheck {
    store: Store,
    key: NodeKey,
    lease: Arc<Lease>,
    /// The run behind the previous result, which `--force` or a retry of rejects replaces.
    before: Option<String>,
    /// Time of the last call on both clocks: the steady clock may stop while the machine is suspended, the system clock
    /// may be set.
    last: Mutex<(Instant, SystemTime)>,
    over: AtomicBool,
}

impl LeaseCheck {
    /// Starts the check now; `asks`: whether the node makes calls.
    pub(crate) fn new(store: &Store, key: NodeKey, lease: Arc<Lease>, asks: bool) -> Arc<Self> {
        let (last, over) = (Mutex::new((Instant::now(), SystemTime::now())), AtomicBool::new(false));
        let before = if asks { store.result(&key).map(|result| result.run) } else { None };
        Arc::new(Self { store: store.clone(), key, lease, before, last, over })
    }

    /// Whether another machine has taken over.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Looks whether another machine has taken over, if that may be.
    pub(crate) async fn has_ended(&self) -> bool {
        if let Err(failure) = self.check().await {
            tracing::debug!("{}", failure.message);
        }
        self.is_over()
    }
}

impl CallPermit for LeaseCheck {
    fn check(&self) -> BoxFuture<'_, Result<(), RowFailure>> {
        async move {
            // Held during the check: concurrent calls wait for its outcome.
            let mut last = self.last.lock().await;
            let gap = last.0.elapsed().max(last.1.elapsed().unwrap_or_default());
            if self.lease.is_lost() {
                self.over.store(true, Ordering::SeqCst);
            }
            if gap >= GAP && !self.is_over() {
                let (store, key) = (self.store.clone(), self.key);
                let (lease, before) = (Arc::clone(&self.lease), self.before.clone());
                let looked = tokio::task::spawn_blocking(move || {
                    // A result of another run shows that another machine had the lease, even if it has given it back.
                    Ok(lease.is_ours()? && store.result(&key).map(|result| result.run) == before)
                });
                match looked.await.unwrap_or_else(|error| Err(StoreError::LeaseCheck(error))) {
                    Ok(true) => {}
                    Ok(false) => self.over.store(true, Ordering::SeqCst),
                    Err(error) => {
                        let why = format!("cannot check the lease after this machine was suspended: {error}");
                        return Err(RowFailure::new(FailureKind::Cancelled, why));
                    }
                }
            }
            *last = (Instant::now(), SystemTime::now());
            if self.is_over() {
                return Err(RowFailure::new(FailureKind::Cancelled, "another machine has taken over this node"));
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fingerprint::hash_bytes;

    fn ago(lease_check: &LeaseCheck) {
        *lease_check.last.blocking_lock() =
            (Instant::now().checked_sub(2 * GAP).unwrap_or_else(Instant::now), SystemTime::now() - 2 * GAP);
    }

    #[test]
    fn the_result_that_is_replaced_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let key = NodeKey(hash_bytes(b"key"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let record = |run: &str| {
            let text = json!({
                "key": key, "preimage": {}, "outputs": {}, "seconds": 0.0, "finished": 1.0, "run": run, "searchmill": ""
            });
            store.record_anew(&serde_json::from_value(text).unwrap()).unwrap();
        };
        record("before");
        let lease = Arc::new(store.try_lease(&key).unwrap().unwrap());
        let lease_check = LeaseCheck::new(&store, key, lease, true);
        ago(&lease_check);
        runtime.block_on(lease_check.check()).unwrap();
        record("meanwhile");
        ago(&lease_check);
        runtime.block_on(lease_check.check()).unwrap_err();
        assert!(lease_check.is_over());
    }
}
