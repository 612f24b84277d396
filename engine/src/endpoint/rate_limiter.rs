//! The rate limiter of one endpoint, shared by all nodes of a run that call it: calls per minute, concurrent calls,
//! requested pauses, silence, and failures in a row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::failure::CallFailure;
use super::money::Prices;
use super::service_address::refers_to_service;
use super::standing::Standing;
use crate::error::OperatorError;

/// Limits of an endpoint. Shared by all nodes of a run that call it; not part of any key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "snake_case")]
pub struct Limits {
    /// Requests per minute (at most), spread evenly.
    pub requests_per_minute: Option<f64>,
    /// Prompt and completion tokens per minute (at most). A call's tokens are known afterwards: later calls wait.
    pub tokens_per_minute: Option<f64>,
    /// Concurrent requests (at most).
    pub concurrency: Option<usize>,
}

impl Limits {
    /// Returns the name of an invalid field, if any.
    pub fn fault(&self) -> Option<&'static str> {
        let rates = [("requests_per_minute", self.requests_per_minute), ("tokens_per_minute", self.tokens_per_minute)];
        let wrong = rates.iter().find(|(_, rate)| rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0));
        wrong.map(|(name, _)| *name).or((self.concurrency == Some(0)).then_some("concurrency"))
    }

    /// Combines two limits: the stricter value per field.
    #[must_use]
    pub fn stricter(&self, other: &Self) -> Self {
        Self {
            requests_per_minute: lower(self.requests_per_minute, other.requests_per_minute),
            tokens_per_minute: lower(self.tokens_per_minute, other.tokens_per_minute),
            concurrency: [self.concurrency, other.concurrency].into_iter().flatten().min(),
        }
    }
}

fn lower(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    [one, other].into_iter().flatten().reduce(f64::min)
}

/// The endpoint that an operator calls, from its params.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointUse {
    /// Name in messages, such as its address; nodes with the same name share its limits.
    pub name: String,
    /// Address, which may be that of a service of the node.
    pub address: String,
    /// Name of the model: costs are estimated from earlier calls of the same model.
    pub model: String,
    /// Identifies the weights as far as the params do (name, revision, server); part of the key of every call.
    pub identity: Value,
    /// Limits of the endpoint.
    pub limits: Limits,
    /// Prices; `None` if the params give none.
    pub prices: Option<Prices>,
    /// Silence, with calls in progress, after which a warning is reported.
    pub stall_after: Duration,
}

/// A token bucket. Its level may fall below zero.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    most: f64,
    level: f64,
    filled: Instant,
}

impl Bucket {
    /// At most one second's worth is stored, so no minute exceeds its limit by more than a sixtieth.
    fn new(per_minute: f64, now: Instant) -> Self {
        let per_second = per_minute / 60.0;
        // Below one a second, a single call must fit.
        let most = per_second.max(1.0);
        Self { per_second, most, level: most, filled: now }
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        self.level = (self.level + seconds * self.per_second).min(self.most);
        self.filled = now;
    }

    /// Returns the time until the level reaches `wanted`.
    fn wait(&mut self, wanted: f64, now: Instant) -> Duration {
        self.fill(now);
        let seconds = ((wanted - self.level) / self.per_second).max(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_hours(1))
    }
}

#[derive(Debug, Default)]
struct State {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    /// No calls start before.
    pause_until: Option<Instant>,
    /// Calls in progress.
    under_way: BTreeSet<u64>,
    serial: u64,
    /// Time since which calls have waited without hearing from the endpoint.
    waiting_since: Option<Instant>,
    /// Whether data arrived since the last call began.
    heard: bool,
    /// Length of the last reported silence.
    told: Option<Duration>,
    /// Whether the endpoint has sent something since that report.
    spoke: bool,
    /// How the calls of each caller go.
    callers: BTreeMap<Arc<str>, Standing>,
    /// Why no caller makes more calls.
    shut: Option<OperatorError>,
}

/// One call of a caller, with all its attempts. Dropped without an outcome, it counts for nothing.
pub(crate) struct Turn {
    limiter: Arc<RateLimiter>,
    caller: Arc<str>,
    number: u64,
}

impl Turn {
    /// Records that an attempt failed and is repeated: the calls that wait for the first one may begin.
    pub(crate) fn goes_on(&self) {
        self.note(Standing::open);
    }

    /// Records that the call was answered.
    pub(crate) fn answered(&self) {
        self.note(|standing| standing.answered(self.number));
    }

    /// Records that the call failed for good; `most` in a row (0: none) end the caller's calls.
    pub(crate) fn failed(&self, failure: &CallFailure, most: u32) {
        self.note(|standing| standing.failed(&self.limiter.name, self.number, failure, most));
    }

    fn note(&self, what: impl FnOnce(&mut Standing)) {
        if let Some(standing) = self.limiter.state().callers.get_mut(&self.caller) {
            what(standing);
        }
        // After the outcome is recorded: whoever waited must see that no more calls are made.
        self.limiter.opened.notify_waiters();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.note(|standing| standing.leave(self.number));
    }
}

/// A report about a silent endpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Silence {
    /// Name of the endpoint.
    pub(crate) endpoint: String,
    /// Time since the endpoint was last heard; `None` once it responds again.
    pub(crate) silent: Option<Duration>,
    /// Calls waiting for it.
    pub(crate) waiting: usize,
}

/// The rate limiter of one endpoint.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    name: String,
    stall_after: Duration,
    slots: Option<Arc<Semaphore>>,
    state: Mutex<State>,
    /// Wakes the calls that wait for a caller's first one.
    opened: Notify,
}

impl RateLimiter {
    /// Creates a limiter with those limits.
    pub(crate) fn new(name: &str, limits: &Limits, stall_after: Duration) -> Arc<Self> {
        let now = Instant::now();
        let requests = limits.requests_per_minute.map(|rate| Bucket::new(rate, now));
        let tokens = limits.tokens_per_minute.map(|rate| Bucket::new(rate, now));
        let state = State { requests, tokens, ..State::default() };
        let slots = limits.concurrency.map(|most| Arc::new(Semaphore::new(most)));
        let (name, opened) = (name.to_owned(), Notify::new());
        Arc::new(Self { name, stall_after, slots, state: Mutex::new(state), opened })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call. The first call of a caller goes alone: an endpoint that refuses all calls is asked once.
    pub(crate) async fn turn(self: &Arc<Self>, caller: &Arc<str>) -> Turn {
        loop {
            // Created before the look, so that an outcome in between is not missed.
            let mut opened = std::pin::pin!(self.opened.notified());
            opened.as_mut().enable();
            let entered = self.state().callers.entry(Arc::clone(caller)).or_default().enter(Instant::now());
            match entered {
                Ok(number) => return Turn { limiter: Arc::clone(self), caller: Arc::clone(caller), number },
                Err(wait) => drop(tokio::time::timeout(wait, opened).await),
            }
        }
    }

    /// Waits for a slot among the concurrent calls.
    pub(crate) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(self.slots.as_ref()?).acquire_owned().await.ok()
    }

    /// Begins a call, or returns how long to wait before trying again.
    pub(crate) fn begin(&self, now: Instant) -> Result<u64, Duration> {
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(until) = state.pause_until
            && until > now
        {
            return Err(until - now);
        }
        let mut wait = Duration::ZERO;
        if let Some(requests) = &mut state.requests {
            wait = requests.wait(1.0, now);
        }
        // How many tokens a call takes is known afterwards: it begins once the earlier ones are made up for.
        if let Some(tokens) = &mut state.tokens {
            wait = wait.max(tokens.wait(f64::MIN_POSITIVE, now));
        }
        if !wait.is_zero() {
            return Err(wait.max(Duration::from_millis(1)));
        }
        if let Some(requests) = &mut state.requests {
            requests.level -= 1.0;
        }
        state.serial += 1;
        let call = state.serial;
        // Idle since it was last heard: the silence before this call is none.
        if std::mem::take(&mut state.heard) && state.under_way.is_empty() {
            state.waiting_since = None;
        }
        state.under_way.insert(call);
        state.waiting_since.get_or_insert(now);
        Ok(call)
    }

    /// Records that the endpoint sent data.
    pub(crate) fn received(&self) {
        let mut state = self.state();
        state.spoke = state.told.is_some();
        // The call goes on: its stream may stall.
        state.waiting_since = Some(Instant::now());
        state.heard = true;
    }

    /// Whether the endpoint is a service of one node.
    pub(crate) fn is_of_service(&self) -> bool {
        refers_to_service(&self.name)
    }

    /// Takes no more calls.
    pub(crate) fn shut(&self, why: &str) {
        self.state().shut.get_or_insert_with(|| OperatorError::machine(why));
    }

    /// Returns why `caller` makes no more calls, if it does not.
    pub(crate) fn closed(&self, caller: &str) -> Option<OperatorError> {
        let state = self.state();
        state.shut.clone().or_else(|| state.callers.get(caller)?.closed())
    }

    /// Records the tokens of a call.
    pub(crate) fn count(&self, tokens: u64) {
        if let Some(bucket) = &mut self.state().tokens {
            bucket.fill(Instant::now());
            // It may fall below zero: later calls wait until it is made up for.
            bucket.level -= tokens as f64;
        }
    }

    /// Pauses all calls for `wait`.
    pub(crate) fn pause(&self, wait: Duration) {
        let until = Instant::now() + wait;
        let mut state = self.state();
        // A shorter pause does not end a longer one.
        state.pause_until = Some(state.pause_until.map_or(until, |before| before.max(until)));
    }

    pub(crate) fn end(&self, call: u64) {
        self.state().under_way.remove(&call);
    }

    /// Returns a report when the silence gets long, each time it has doubled, and when it ends.
    pub(crate) fn watch(&self, now: Instant) -> Option<Silence> {
        let mut state = self.state();
        let waiting = state.under_way.len();
        if std::mem::take(&mut state.spoke) {
            state.told = None;
            return Some(Silence { endpoint: self.name.clone(), silent: None, waiting });
        }
        // Between calls the endpoint owes no answer. A call that was given up does not end the silence.
        let since = state.waiting_since.filter(|_| waiting > 0)?;
        let silent = now.saturating_duration_since(since);
        let enough = state.told.map_or(self.stall_after, |before| 2 * before);
        if silent < enough {
            return None;
        }
        state.told = Some(silent);
        Some(Silence { endpoint: self.name.clone(), silent: Some(silent), waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::failure::{Counts, FailureKind};

    fn limiter(limits: &Limits) -> Arc<RateLimiter> {
        RateLimiter::new("http://h/v1", limits, Duration::from_secs(30))
    }

    #[test]
    fn requests_are_spread_over_the_minute() {
        let limiter = limiter(&Limits { requests_per_minute: Some(120.0), ..Limits::default() });
        let start = Instant::now();
        let mut now = start;
        let mut begun = 0;
        while now < start + Duration::from_mins(1) {
            match limiter.begin(now) {
                Ok(_) => begun += 1,
                Err(wait) => now += wait,
            }
        }
        assert!((120..=123).contains(&begun), "{begun} in a minute");
    }

    #[test]
    fn tokens_are_paid_back_before_the_next_call() {
        let limiter = limiter(&Limits { tokens_per_minute: Some(6000.0), ..Limits::default() });
        let now = Instant::now();
        assert!(limiter.begin(now).is_ok());
        limiter.count(1100);
        let wait = limiter.begin(Instant::now()).expect_err("a debt of a thousand tokens");
        assert!((9.0..10.1).contains(&wait.as_secs_f64()), "{wait:?}");
        assert!(limiter.begin(Instant::now() + wait + Duration::from_millis(50)).is_ok());
    }

    #[test]
    fn a_pause_is_for_everybody() {
        let limiter = limiter(&Limits::default());
        limiter.pause(Duration::from_secs(5));
        limiter.pause(Duration::from_secs(1));
        let wait = limiter.begin(Instant::now()).expect_err("a pause");
        assert!(wait > Duration::from_secs(4), "{wait:?}: a shorter pause does not end a longer one");
        assert!(limiter.begin(Instant::now() + Duration::from_secs(6)).is_ok());
    }

    #[test]
    fn silence_is_told_when_it_is_long_when_it_doubles_and_when_it_ends() {
        let limiter = limiter(&Limits::default());
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(limiter.watch(at(100)), None, "no call is waiting");
        let call = limiter.begin(start).expect("a call");
        let silent = |seconds| limiter.watch(at(seconds)).map(|silence| silence.silent.map(|silent| silent.as_secs()));
        assert_eq!((silent(29), silent(31), silent(59), silent(63)), (None, Some(Some(31)), None, Some(Some(63))));
        limiter.end(call);
        assert_eq!(silent(200), None, "given up, and no call is waiting");
        let again = limiter.begin(at(200)).expect("a call");
        assert_eq!(silent(201), Some(Some(201)), "silent since the first call");
        limiter.received();
        limiter.end(again);
        assert_eq!((silent(202), silent(203)), (Some(None), None));
    }

    #[test]
    fn a_stream_that_stalls_is_told_and_a_pause_between_calls_is_not() {
        let limiter = limiter(&Limits::default());
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let call = limiter.begin(start).expect("a call");
        limiter.received();
        assert_eq!(limiter.watch(at(29)), None);
        let told = limiter.watch(at(31)).and_then(|silence| silence.silent);
        assert!(
            told.is_some_and(|silent| silent.as_secs() >= 30),
            "one call, whose stream began and stalled: {told:?}"
        );
        limiter.received();
        limiter.watch(at(32));
        limiter.end(call);
        let _next = limiter.begin(at(300)).expect("a call");
        assert_eq!(limiter.watch(at(301)), None, "nothing was owed between the calls");
    }

    #[tokio::test]
    async fn who_is_turned_away_closes_it_for_nobody_else() {
        let limiter = limiter(&Limits::default());
        let [wrong, right] = ["wrong key", "right key"].map(Arc::<str>::from);
        let refused = CallFailure::new(FailureKind::Refused, "401 Unauthorized".to_owned(), None);
        for _ in 0..8 {
            assert!(limiter.closed(&wrong).is_none());
            limiter.turn(&wrong).await.failed(&refused, 8);
        }
        assert!(limiter.closed(&wrong).is_some_and(|why| why.message.ends_with("401 Unauthorized")));
        assert!(limiter.closed(&right).is_none());
        limiter.shut("it has ended");
        assert!(limiter.closed(&right).is_some_and(|why| why.message == "it has ended"));
    }

    #[tokio::test]
    async fn calls_wait_for_the_first_one_and_see_its_outcome() {
        let limiter = limiter(&Limits::default());
        let caller = Arc::<str>::from("node");
        let first = limiter.turn(&caller).await;
        let waiting = tokio::spawn({
            let (limiter, caller) = (Arc::clone(&limiter), Arc::clone(&caller));
            async move {
                let _turn = limiter.turn(&caller).await;
                limiter.closed(&caller).is_some()
            }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let missing =
            CallFailure { counts: Counts::AtFirst, ..CallFailure::new(FailureKind::Refused, String::new(), None) };
        first.failed(&missing, 8);
        assert!(waiting.await.expect("it began"), "what began after the refusal sees it");
    }

    #[test]
    fn the_stricter_limit_counts() {
        let one = Limits { requests_per_minute: Some(60.0), concurrency: Some(4), ..Limits::default() };
        let other = Limits { requests_per_minute: Some(90.0), tokens_per_minute: Some(5.0), concurrency: Some(2) };
        let both = Limits { requests_per_minute: Some(60.0), tokens_per_minute: Some(5.0), concurrency: Some(2) };
        assert_eq!((one.stricter(&other), other.stricter(&one)), (both.clone(), both));
        assert_eq!(Limits { concurrency: Some(0), ..Limits::default() }.fault(), Some("concurrency"));
    }
}
