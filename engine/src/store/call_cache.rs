//! Answers to calls of the outside, by what was sent: whoever sends the same to the same model again, in another row, node,
//! version or pipeline, does not pay. They lie in a memo of their own for each model, which grows with every answer.
//!
//! A payload is the usage as a line of JSON, and the answer.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::asking::Asking;
use super::error::StoreError;
use super::layout::Store;
use super::memo::{Memo, MemoDamage};
use crate::fingerprint::{Digest, RowKey};
use crate::operator::{KeptCall, Usage};

/// The calls to one model. Nothing is read before the first question.
#[derive(Debug)]
pub struct CallCache {
    store: Store,
    base: Digest,
    rebuy: bool,
    /// Calls that processes of this machine have under way; of a run.
    asking: Option<Asking>,
    state: Mutex<State>,
    /// A call has come to its end.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    memo: Option<Memo>,
    /// The newest stamp when the memo was opened first.
    newest_before: Option<u64>,
    /// Calls under way.
    asking: BTreeSet<RowKey>,
    /// Why an answer could not be kept.
    failure: Option<StoreError>,
}

/// What is known of a call.
pub enum CallState {
    /// The answer.
    Known(KeptCall),
    /// Another row of this process asks it now.
    UnderWay,
    /// Another process asks it now.
    Elsewhere,
    /// Nothing: it is noted as under way, until [`CallCache::end`].
    Begun,
}

impl CallCache {
    /// The calls of that base ([`crate::fingerprint::calls_base`]).
    #[must_use]
    pub fn new(store: &Store, base: &Digest) -> Self {
        let (store, state) = (store.clone(), Mutex::default());
        Self { store, base: *base, rebuy: false, asking: None, state, ended: Notify::new() }
    }

    /// For a run, which asks what is not known, and what no other process asks. With `rebuy` it may pay again for
    /// answers that are damaged, however many.
    #[must_use]
    pub fn asking(self, rebuy: bool) -> Self {
        let asking = Some(Asking::open(&self.store, &self.base));
        Self { rebuy, asking, ..self }
    }

    /// May many damaged answers be paid again?
    #[must_use]
    pub fn may_rebuy(&self) -> bool {
        self.rebuy
    }

    /// Names the memo that they lie in.
    #[must_use]
    pub fn base(&self) -> Digest {
        self.base
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, work: impl FnOnce(&mut State, &mut Memo) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let mut state = self.state();
        let mut memo = match state.memo.take() {
            Some(memo) => memo,
            None => self.open()?,
        };
        state.newest_before.get_or_insert(memo.newest());
        let done = work(&mut state, &mut memo);
        state.memo = Some(memo);
        done
    }

    fn open(&self) -> Result<Memo, StoreError> {
        self.store.tidy_memo(&self.base);
        Memo::open(&self.store, &self.base)
    }

    /// How many calls are known.
    ///
    /// # Errors
    /// When the memo cannot be read.
    pub fn count(&self) -> Result<usize, StoreError> {
        self.with(|_, memo| Ok(memo.len()))
    }

    /// What is damaged in the memo.
    ///
    /// # Errors
    /// When the memo cannot be read.
    pub fn damage(&self) -> Result<MemoDamage, StoreError> {
        self.with(|_, memo| Ok(memo.damage().clone()))
    }

    /// Takes damaged segments out of the way, as far as that can be done, and reads what is whole.
    ///
    /// # Errors
    /// When the memo cannot be read.
    pub fn mend(&self) -> Result<(), StoreError> {
        let damage = self.damage()?;
        self.store.mend_memo(&self.base, &damage)?;
        self.state().memo = Some(self.open()?);
        Ok(())
    }

    /// The newest stamp of before this run.
    ///
    /// # Errors
    /// When the memo cannot be read.
    pub fn newest_before(&self) -> Result<u64, StoreError> {
        self.with(|state, _| Ok(state.newest_before.unwrap_or_default()))
    }

    /// Begins a call, unless an answer that was kept since then is accepted, or it is under way.
    ///
    /// # Errors
    /// When the memo cannot be read.
    pub fn begin(&self, key: &RowKey, since: u64, accept: &dyn Fn(&KeptCall) -> bool) -> Result<CallState, StoreError> {
        let look = |memo: &Memo| {
            let mut kept = memo.stamped(key, since).filter_map(|(_, payload)| read(&payload));
            kept.find(|call| accept(call))
        };
        self.with(|state, memo| {
            if let Some(call) = look(memo) {
                return Ok(CallState::Known(call));
            }
            if state.asking.contains(key) {
                return Ok(CallState::UnderWay);
            }
            if let Some(asking) = &self.asking {
                if !asking.begin(key) {
                    return Ok(CallState::Elsewhere);
                }
                // Another process may have asked it since this one looked.
                let known = memo.refresh().map(|()| look(memo));
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

    /// All answers that are kept for a call since then.
    ///
    /// # Errors
    /// When the memo cannot be read.
    pub fn answers(&self, key: &RowKey, since: u64) -> Result<Vec<KeptCall>, StoreError> {
        self.with(|_, memo| Ok(memo.stamped(key, since).filter_map(|(_, payload)| read(&payload)).collect()))
    }

    /// Keeps an answer: it survives the death of the process. What goes wrong is told by [`Self::check`].
    pub fn keep(&self, key: &RowKey, call: &KeptCall) {
        self.keep_since(key, call, 0);
    }

    /// The same for a node for which only answers since then count: this one does, also where the clock is behind that of
    /// the machine that forced the node.
    pub fn keep_since(&self, key: &RowKey, call: &KeptCall, since: u64) {
        let kept = self.with(|_, memo| memo.keep_since(key, &write(call)?, since));
        if let Err(error) = kept {
            self.fail(error);
        }
    }

    /// A call that was begun has come to its end.
    pub fn end(&self, key: &RowKey) {
        self.state().asking.remove(key);
        if let Some(asking) = &self.asking {
            asking.end(key);
        }
        self.ended.notify_waiters();
    }

    /// Until some call has ended; whoever waits looks again afterwards.
    pub fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// Something went wrong that is told by [`Self::check`].
    pub fn fail(&self, error: StoreError) {
        self.state().failure.get_or_insert(error);
    }

    /// Could an answer not be kept? Then no other call is made.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Were all answers kept?
    ///
    /// # Errors
    /// Why one was not.
    pub fn check(&self) -> Result<(), StoreError> {
        self.state().failure.take().map_or(Ok(()), Err)
    }

    /// Flushes to disk, and to the shared store if it is one.
    ///
    /// # Errors
    /// When the disk or the store refuses.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.state().memo.as_mut().map_or(Ok(()), Memo::sync)
    }
}

fn write(call: &KeptCall) -> Result<Vec<u8>, StoreError> {
    let mut payload = serde_json::to_vec(&call.usage).map_err(|error| StoreError::Location(error.to_string()))?;
    payload.push(b'\n');
    payload.extend(&call.response);
    Ok(payload)
}

fn read(payload: &[u8]) -> Option<KeptCall> {
    let end = payload.iter().position(|byte| *byte == b'\n')?;
    let usage: Usage = serde_json::from_slice(&payload[..end]).ok()?;
    Some(KeptCall { response: payload[end + 1..].to_vec(), usage })
}
