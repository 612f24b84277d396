//! The calls of one row: known ones are recalled, new ones are kept, and equal ones that are under way are waited for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::fingerprint::{CallPlace, Digest, RowKey, call_key, hash_bytes};
use crate::operator::{Begun, CallJournal, Context, KeptCall, OpenCall, OperatorError, Usage};
use crate::store::{CallState, Calls, MemoDamage};

/// The share of the remembered answers that is asked again without a word of leave.
const MOST_LOST: f64 = 0.05;

/// The calls of one sample of one row.
pub(super) struct RowCalls {
    calls: Arc<Calls>,
    place: CallPlace,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often the row has sent a request.
    sent: BTreeMap<Digest, u32>,
    replayed: Usage,
}

impl RowCalls {
    /// `place` without [`CallPlace::repeat`].
    pub(super) fn new(calls: Arc<Calls>, place: CallPlace) -> Self {
        Self { calls, place, state: Mutex::default() }
    }

    /// What the answers cost that were known.
    pub(super) fn replayed(&self) -> Usage {
        self.state().replayed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_key(&self, request: &[u8]) -> RowKey {
        let request = hash_bytes(request);
        let mut state = self.state();
        let sent = state.sent.entry(request).or_default();
        let place = CallPlace { repeat: *sent, ..self.place };
        *sent += 1;
        call_key(&self.calls.base(), &request, &place)
    }
}

impl CallJournal for RowCalls {
    fn begin<'a>(
        &'a self,
        request: &'a [u8],
        accept: &'a (dyn Fn(&KeptCall) -> bool + Send + Sync),
    ) -> BoxFuture<'a, Begun> {
        let key = self.next_key(request);
        async move {
            loop {
                // Made before the look, so that an end between the two is not missed.
                let mut ended = std::pin::pin!(self.calls.ended());
                ended.as_mut().enable();
                match self.calls.begin(&key, accept) {
                    Ok(CallState::Known(call)) => {
                        self.state().replayed += call.usage;
                        return Begun::Known(call);
                    }
                    Ok(CallState::Begun) => {
                        return Begun::Ask(Box::new(RowCall { calls: Arc::clone(&self.calls), key }));
                    }
                    Ok(CallState::UnderWay) => ended.await,
                    Err(error) => {
                        let told = error.to_string();
                        // Fails the node: the row is neither done nor failed.
                        self.calls.fail(error);
                        return Begun::Failed(told);
                    }
                }
            }
        }
        .boxed()
    }
}

/// Reads the calls that are known. Where so much of them is damaged that a good part would be paid again, the node fails,
/// unless the run may.
///
/// # Errors
/// When the memo cannot be read, or lost more than [`MOST_LOST`].
pub(super) fn read_calls(calls: &Calls, context: &Context) -> Result<(), OperatorError> {
    let damage = calls.damage()?;
    if damage.lost == 0 {
        return Ok(());
    }
    let told = damage_text("answers", &damage);
    if damage.share() > MOST_LOST && !calls.may_rebuy() {
        let error = OperatorError::machine(format!("{told}, and calls for them would be paid again"));
        return Err(error.with_help("restore the files from a copy, or run with `--rebuy` to pay for what is missing"));
    }
    context.progress().log(&format!("{told}: what is missing is asked again"));
    calls.mend()?;
    Ok(())
}

/// What is damaged in a memo, in words.
pub(super) fn damage_text(what: &str, damage: &MemoDamage) -> String {
    let (lost, all) = (damage.lost, damage.lost + damage.whole);
    let files: Vec<String> = damage.segments.iter().map(|path| path.display().to_string()).collect();
    format!("{lost} of {all} remembered {what} are damaged in {}", files.join(", "))
}

/// A call that is being asked.
struct RowCall {
    calls: Arc<Calls>,
    key: RowKey,
}

impl OpenCall for RowCall {
    fn keep(&mut self, call: &KeptCall) {
        self.calls.keep(&self.key, call);
    }
}

impl Drop for RowCall {
    fn drop(&mut self) {
        self.calls.end(&self.key);
    }
}
