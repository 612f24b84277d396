//! Caches answers to external calls by request: an equal request to the same model is not paid again.
//!
//! The row, node, version and pipeline that sent the request do not matter. Each model has its own memo, which grows
//! with every answer. A payload is the usage as a line of JSON, followed by the answer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::in_flight::Asking;
use super::row_codec::head;
use super::{Memo, MemoDamage};
use crate::endpoint::KeptCall;
use crate::fingerprint::{Digest, RowKey};
use crate::store::error::StoreError;
use crate::store::layout::Store;

/// Cached calls to one model, read on first use.
#[derive(Debug)]
pub struct CallCache {
    store: Store,
    base: Digest,
    rebuy: bool,
    /// Calls in flight in processes of this machine; set for runs only.
    asking: Option<Asking>,
    state: Mutex<State>,
    /// Notified when a call ends.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    memo: Option<Memo>,
    /// Newest stamp when the memo was first opened.
    newest_before: Option<u64>,
    /// Calls in flight in this process.
    asking: BTreeSet<RowKey>,
    /// Why an answer could not be stored. It stays for the whole run.
    failure: Option<Arc<StoreError>>,
}

/// The state of a call.
pub enum CallState {
    /// The cached answer.
    Known(KeptCall),
    /// Another row of this process has the call in flight.
    UnderWay,
    /// Another process has the call in flight.
    Elsewhere,
    /// Not cached: the call is now marked as in flight until [`CallCache::end`].
    Begun,
}

impl CallCache {
    /// The calls to one model or service outside, of which `base` is the digest.
    pub fn new(store: &Store, base: &Digest) -> Self {
        let (store, state) = (store.clone(), Mutex::default());
        Self { store, base: *base, rebuy: false, asking: None, state, ended: Notify::new() }
    }

    /// Prepares the cache for a run, which makes calls that are neither cached nor in flight elsewhere. With `rebuy`,
    /// the run may pay again for any number of damaged answers.
    #[must_use]
    pub fn asking(self, rebuy: bool) -> Self {
        let file = self.store.root().join("leases").join(format!("{}.calls", self.base.hex()));
        Self { rebuy, asking: Some(Asking::at(&file)), ..self }
    }

    /// Whether any number of damaged answers may be paid again.
    pub fn may_rebuy(&self) -> bool {
        self.rebuy
    }

    /// Returns the base of the memo.
    pub fn base(&self) -> Digest {
        self.base
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, work: impl FnOnce(&mut State, &mut Memo) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let mut state = self.state();
        let mut memo = state.memo.take().map_or_else(|| self.store.recall(&self.base, true), Ok)?;
        state.newest_before.get_or_insert(memo.newest());
        let result = work(&mut state, &mut memo);
        // Put back even after a failure: what it knows is still right.
        state.memo = Some(memo);
        result
    }

    /// Returns the number of cached calls.
    ///
    /// # Errors
    /// Fails if the memo cannot be read.
    pub fn count(&self) -> Result<usize, StoreError> {
        self.with(|_, memo| Ok(memo.len()))
    }

    /// Returns the damage found in the memo.
    ///
    /// # Errors
    /// Fails if the memo cannot be read.
    pub fn damage(&self) -> Result<MemoDamage, StoreError> {
        self.with(|_, memo| Ok(memo.damage().clone()))
    }

    /// Moves damaged segments aside as far as possible and rereads the intact records.
    ///
    /// # Errors
    /// Fails if the memo cannot be read.
    pub fn mend(&self) -> Result<(), StoreError> {
        self.store.mend_memo(&self.base, &self.damage()?)?;
        self.state().memo = Some(self.store.recall(&self.base, true)?);
        Ok(())
    }

    /// Returns the newest stamp from before this run.
    ///
    /// # Errors
    /// Fails if the memo cannot be read.
    pub fn newest_before(&self) -> Result<u64, StoreError> {
        self.with(|state, _| Ok(state.newest_before.unwrap_or_default()))
    }

    /// Begins a call unless an acceptable answer since then is cached or the call is in flight.
    ///
    /// # Errors
    /// Fails if the memo cannot be read.
    pub fn begin(&self, key: &RowKey, since: u64, accept: &dyn Fn(&KeptCall) -> bool) -> Result<CallState, StoreError> {
        self.with(|state, memo| {
            if let Some(call) = accepted(memo, key, since, accept) {
                return Ok(CallState::Known(call));
            }
            if state.asking.contains(key) {
                return Ok(CallState::UnderWay);
            }
            if let Some(asking) = &self.asking {
                if !asking.begin(key) {
                    return Ok(CallState::Elsewhere);
                }
                // Another process may have made the call since this process last looked. Looked at under the lock: the
                // process that held it before has appended its answer.
                let known = memo.refresh().map(|()| accepted(memo, key, since, accept));
                if !matches!(known, Ok(None)) {
                    asking.end(key);
                }
                if let Some(call) = known? {
                    return Ok(CallState::Known(call));
                }
            }
            state.asking.insert(*key);
            Ok(CallState::Begun)
        })
    }

    /// Returns all answers cached for a call since then.
    ///
    /// # Errors
    /// Fails if the memo cannot be read.
    pub fn answers(&self, key: &RowKey, since: u64) -> Result<Vec<KeptCall>, StoreError> {
        self.with(|_, memo| Ok(memo.stamped(key, since).filter_map(|(_, payload)| read(&payload)).collect()))
    }

    /// Stores an answer, which then survives the death of the process. [`Self::check`] reports failures.
    pub fn keep(&self, key: &RowKey, call: &KeptCall) {
        self.keep_since(key, call, 0);
    }

    /// Stores an answer for a node that only accepts answers since then. It counts even if this clock is behind that of
    /// the machine that forced the node.
    pub fn keep_since(&self, key: &RowKey, call: &KeptCall, since: u64) {
        let stored = self.with(|_, memo| memo.keep_since(key, &write(call)?, since));
        if let Err(error) = stored {
            self.fail(error);
        }
    }

    /// Ends a call that was begun.
    pub fn end(&self, key: &RowKey) {
        self.state().asking.remove(key);
        if let Some(asking) = &self.asking {
            asking.end(key);
        }
        // Last: those who wait look again at once, and must find the call ended.
        self.ended.notify_waiters();
    }

    /// Resolves when any call ends; callers then look again.
    pub fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// Records a failure that [`Self::check`] reports.
    pub fn fail(&self, error: StoreError) {
        self.state().failure.get_or_insert_with(|| Arc::new(error));
    }

    /// Whether an answer could not be stored. No further calls are then made.
    pub fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Reports whether all answers were stored.
    ///
    /// # Errors
    /// Why an answer was not stored.
    pub fn check(&self) -> Result<(), StoreError> {
        let failure = self.state().failure.clone();
        failure.map_or(Ok(()), |failure| Err(StoreError::Earlier(failure)))
    }

    /// Flushes to disk, and to the shared store if there is one.
    ///
    /// # Errors
    /// Fails if the disk or the shared store fails.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.state().memo.as_mut().map_or(Ok(()), Memo::sync)
    }
}

/// Returns the newest answer since then that is acceptable.
fn accepted(memo: &Memo, key: &RowKey, since: u64, accept: &dyn Fn(&KeptCall) -> bool) -> Option<KeptCall> {
    let mut calls = memo.stamped(key, since).filter_map(|(_, payload)| read(&payload));
    calls.find(|call| accept(call))
}

fn write(call: &KeptCall) -> Result<Vec<u8>, StoreError> {
    let mut payload = serde_json::to_vec(&call.usage)?;
    payload.push(b'\n');
    payload.extend(&call.response);
    Ok(payload)
}

fn read(payload: &[u8]) -> Option<KeptCall> {
    let (usage, response) = head(payload)?;
    Some(KeptCall { response: response.to_vec(), usage })
}
