//! The calls of one row: recalls known answers, remembers new ones, and waits for equal calls in progress. The same for
//! the services that a node calls beside its endpoint, with the failures that its rows were told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::endpoint::{Begun, CallJournal, EndpointSession, EndpointUse, KeptCall, OpenCall, Usage};
use crate::error::OperatorError;
use crate::fingerprint::{CallPlace, Digest, RowKey, call_key, hash_bytes, told_base};
use crate::operator::{Context, Declaration};
use crate::store::{CallCache, CallState, Store, StoreError};

/// Largest share of lost answers that is asked again without `--rebuy`.
const MOST_LOST: f64 = 0.05;

/// Interval between checks whether another process has received its answer.
const LOOK: Duration = Duration::from_millis(50);

/// The calls sent by one sample of one row.
pub(crate) struct Sent {
    base: Digest,
    place: CallPlace,
    /// Number of calls by request digest; `None`: equal requests are one call.
    times: Option<Mutex<BTreeMap<Digest, u32>>>,
}

impl Sent {
    /// `place` does not count [`CallPlace::repeat`].
    pub(crate) fn new(base: Digest, place: CallPlace) -> Self {
        Self { base, place, times: Some(Mutex::default()) }
    }

    /// Returns the key of the next call with this request.
    pub(crate) fn next_key(&self, request: &[u8]) -> RowKey {
        let request = hash_bytes(request);
        let Some(times) = &self.times else { return call_key(&self.base, &request, &self.place) };
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        let times = times.entry(request).or_default();
        let place = CallPlace { repeat: *times, ..self.place };
        *times += 1;
        call_key(&self.base, &request, &place)
    }
}

/// The calls of one sample of one row.
pub(super) struct RowCalls {
    calls: Arc<CallCache>,
    sent: Sent,
    /// Earlier answers do not count.
    since: u64,
    replayed: Mutex<Usage>,
}

impl RowCalls {
    /// `place` does not count [`CallPlace::repeat`].
    pub(crate) fn new(calls: Arc<CallCache>, place: CallPlace, since: u64) -> Self {
        let sent = Sent::new(calls.base(), place);
        Self { calls, sent, since, replayed: Mutex::default() }
    }

    /// Returns the observations of a service: an equal request is the same call, whatever row makes it.
    pub(super) fn by_content(calls: Arc<CallCache>, since: u64) -> Self {
        let sent = Sent { base: calls.base(), place: CallPlace::default(), times: None };
        Self { calls, sent, since, replayed: Mutex::default() }
    }

    /// Returns the failures of a service that this row was told.
    pub(crate) fn told(calls: Arc<CallCache>, row: Option<&RowKey>, since: u64) -> Self {
        let sent = Sent::new(told_base(&calls.base(), row), CallPlace::default());
        Self { calls, sent, since, replayed: Mutex::default() }
    }

    /// Returns what the remembered answers cost.
    pub(crate) fn replayed(&self) -> Usage {
        *self.replayed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallJournal for RowCalls {
    fn begin<'a>(
        &'a self,
        request: &'a [u8],
        accept: &'a (dyn Fn(&KeptCall) -> bool + Send + Sync),
    ) -> BoxFuture<'a, Begun> {
        let key = self.sent.next_key(request);
        async move {
            loop {
                // Created before the lookup, so that a call ending in between is not missed.
                let mut ended = std::pin::pin!(self.calls.ended());
                ended.as_mut().enable();
                match self.calls.begin(&key, self.since, accept) {
                    Ok(CallState::Known(call)) => {
                        *self.replayed.lock().unwrap_or_else(PoisonError::into_inner) += call.usage;
                        return Begun::Known(call);
                    }
                    Ok(CallState::Begun) if self.calls.has_failed() => {
                        self.calls.end(&key);
                        return Begun::Failed("an answer could not be stored: no further calls are sent".to_owned());
                    }
                    Ok(CallState::Begun) => {
                        let (calls, since) = (Arc::clone(&self.calls), self.since);
                        return Begun::Ask(Box::new(RowCall { calls, key, since }));
                    }
                    Ok(CallState::UnderWay) => ended.await,
                    Ok(CallState::Elsewhere) => tokio::time::sleep(LOOK).await,
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

/// Reads the remembered calls and repairs damage. Fails the node if many answers are lost and would be paid for again,
/// unless the run allows it.
///
/// # Errors
/// Fails if the memo cannot be read, or lost more than [`MOST_LOST`] of its answers.
pub(super) fn read_calls(calls: &CallCache, context: &Context) -> Result<(), OperatorError> {
    let damage = calls.damage()?;
    if damage.lost == 0 {
        return Ok(());
    }
    let told = damage.text("answers");
    if damage.share() > MOST_LOST && !calls.may_rebuy() {
        let error = OperatorError::machine(format!("{told}; asking again would cost money"));
        return Err(
            error.with_help("restore the files from a backup, or run with `--rebuy` to pay for the missing answers")
        );
    }
    context.progress().log(&format!("{told}: calling again for the missing ones"));
    Ok(calls.mend()?)
}

/// A call in progress.
struct RowCall {
    calls: Arc<CallCache>,
    key: RowKey,
    since: u64,
}

impl OpenCall for RowCall {
    fn keep(&self, call: &KeptCall) {
        self.calls.keep_since(&self.key, call, self.since);
    }
}

impl Drop for RowCall {
    fn drop(&mut self) {
        self.calls.end(&self.key);
    }
}

/// The call caches of the services that a node observes, in the order of its declaration.
#[derive(Clone, Default)]
pub(crate) struct Observations {
    pub(crate) caches: Vec<Arc<CallCache>>,
}

impl Observations {
    /// Returns the remembered observations of an operator, outside a run; `base` is that of the calls to a service.
    pub(crate) fn kept(store: &Store, declaration: &Declaration, base: impl Fn(&EndpointUse) -> Digest) -> Self {
        let services = declaration.observed.iter();
        Self { caches: services.map(|service| Arc::new(CallCache::new(store, &base(service)))).collect() }
    }

    /// Adds the journals of a row to a session and returns them; without a row, those of the node before its rows.
    pub(super) fn join(&self, session: &mut EndpointSession, row: Option<&RowKey>, since: u64) -> Vec<Arc<RowCalls>> {
        session.observed.resize_with(self.caches.len(), Default::default);
        let mut journals = Vec::new();
        for (calls, observed) in self.caches.iter().zip(&mut session.observed) {
            // An observation is shared by all rows that ask for it; a failure stays with the row that met it.
            let by_content = Arc::new(RowCalls::by_content(Arc::clone(calls), since));
            let told = Arc::new(RowCalls::told(Arc::clone(calls), row, since));
            observed.journal = Some(Arc::clone(&by_content) as Arc<dyn CallJournal>);
            observed.failures = Some(Arc::clone(&told) as Arc<dyn CallJournal>);
            journals.extend([by_content, told]);
        }
        journals
    }

    /// Returns the context of a node before its rows.
    pub(crate) fn context(&self, context: Context, since: u64) -> Context {
        let mut session = context.session().clone();
        self.join(&mut session, None, since);
        context.with_session(session)
    }

    /// Repairs damage.
    ///
    /// # Errors
    /// Fails as [`read_calls`] does.
    pub(crate) fn read(&self, context: &Context) -> Result<(), OperatorError> {
        self.caches.iter().try_for_each(|calls| read_calls(calls, context))
    }

    /// Reports whether all observations were stored.
    ///
    /// # Errors
    /// Why one was not stored.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.caches.iter().try_for_each(|calls| calls.check())
    }

    /// Flushes to disk, and to the shared store if there is one.
    ///
    /// # Errors
    /// Fails if the disk or the shared store fails.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.caches.iter().try_for_each(|calls| calls.sync())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::endpoint::{CallFailure, FailureKind, Prices};
    use crate::operator::{Attempt, Call, ContextParts, RetryPolicy};

    #[test]
    fn nothing_is_asked_once_an_answer_could_not_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let calls = Arc::new(CallCache::new(&store, &hash_bytes(b"model")).asking(false));
        let row = RowCalls::new(Arc::clone(&calls), CallPlace::default(), 0);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let begin = |request: &[u8]| runtime.block_on(row.begin(request, &|_| true));
        let Begun::Ask(open) = begin(b"one") else { panic!("the call is not known") };
        open.keep(&KeptCall { response: b"answer".to_vec(), usage: Usage::default() });
        drop(open);
        calls.fail(StoreError::Machine(OperatorError::machine("no space left")));
        assert!(matches!(begin(b"two"), Begun::Failed(_)));
        assert!(calls.check().is_err());
        assert!(matches!(begin(b"two"), Begun::Failed(_)), "a report changes nothing, and the call is not in progress");
        assert!(calls.check().is_err(), "every node of the model fails");
    }

    /// A call whose answer one parser cannot read, and a later one can.
    struct Asking {
        can_read: bool,
        sent: AtomicU32,
    }

    impl Call for Asking {
        type Answer = String;

        fn request(&self) -> &[u8] {
            b"request"
        }

        fn prices(&self) -> &Prices {
            static FREE: LazyLock<Prices> = LazyLock::new(Prices::default);
            &FREE
        }

        fn send<'a>(&'a self, _: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>> {
            self.sent.fetch_add(1, Ordering::SeqCst);
            let usage = Usage { calls: 1, prompt_tokens: 5, ..Usage::default() };
            async move { Ok((b"as it came".to_vec(), usage)) }.boxed()
        }

        fn read(&self, answer: &[u8]) -> Result<String, CallFailure> {
            let unread = || CallFailure::new(FailureKind::BadResponse, "unreadable".to_owned(), None);
            self.can_read.then(|| String::from_utf8_lossy(answer).into_owned()).ok_or_else(unread)
        }
    }

    #[test]
    fn an_answer_that_could_not_be_read_is_kept_and_a_better_parser_pays_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let retry = RetryPolicy { max_attempts: 2, backoff: Duration::from_millis(1), ..RetryPolicy::default() };
        let ask = |can_read| {
            let store = Store::open(folder.path()).unwrap();
            let calls = Arc::new(CallCache::new(&store, &hash_bytes(b"model")).asking(false));
            let parts = ContextParts::bare(folder.path(), runtime.handle(), reqwest::Client::new());
            let row = Arc::new(RowCalls::new(Arc::clone(&calls), CallPlace::default(), 0));
            let session = EndpointSession { journal: Some(row.clone()), ..EndpointSession::default() };
            let context = Context::new(ContextParts { retry, ..parts }).with_session(session);
            let asking = Asking { can_read, sent: AtomicU32::new(0) };
            let answer = runtime.block_on(context.call(&asking)).map_err(|failure| (failure.message, failure.attempts));
            calls.sync().unwrap();
            (answer, asking.sent.into_inner(), row.replayed().prompt_tokens)
        };
        assert_eq!(ask(false), (Err(("unreadable".to_owned(), 2)), 2, 0), "asked again, as after any failure");
        assert_eq!(ask(true), (Ok("as it came".to_owned()), 0, 5), "read from the store");
        assert_eq!(ask(false).1, 2, "what cannot be read does not count");
    }
}
