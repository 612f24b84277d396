//! Calls to external services: a known answer is returned from the journal; a new call waits for its turn, is counted
//! and retried, and its answer is stored.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::context::{Context, Retry};
use crate::endpoint::{
    Begun, CallFailure, EndpointSession, FailureKind, KeptCall, OpenCall, Prices, Refusal, RowFailure, Turn, Usage,
};

/// Interval between checks whether the run is stopping.
const STEP: Duration = Duration::from_millis(200);

/// Longest pause while the run only finishes calls in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// One external call, for [`Context::call`].
pub trait Call: Send + Sync {
    /// The parsed answer.
    type Answer: Send;

    /// Identifies the call: the same bytes sent to the same model are not paid for twice.
    fn request(&self) -> &[u8];

    /// Returns the endpoint's prices.
    fn prices(&self) -> &Prices;

    /// Whether it asks a model, and not a tool or another service.
    fn asks_a_model(&self) -> bool {
        true
    }

    /// Sends the call once. Returns what came, in a form that [`Call::read`] parses, and the usage of this attempt. It is
    /// stored whether or not it can be parsed: it is paid for, and a later version may read it.
    fn send<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>>;

    /// Parses an answer, new or remembered. Fails like an attempt: an answer that cannot be parsed is requested again.
    ///
    /// # Errors
    /// Fails with the reason if the answer cannot be parsed.
    fn read(&self, answer: &[u8]) -> Result<Self::Answer, CallFailure>;
}

/// Returns the usage of that many attempts that brought nothing.
fn calls<C: Call>(call: &C, attempts: u32) -> Usage {
    let calls = u64::from(attempts);
    Usage { calls, service_calls: if call.asks_a_model() { 0 } else { calls }, ..Usage::default() }
}

/// Permission for one attempt at a call. Dropping it ends the attempt.
pub struct Attempt {
    number: u32,
    session: EndpointSession,
    call: Option<u64>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Attempt {
    /// Returns the number of this attempt, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Records that the endpoint sent data: it is not silent.
    pub fn received(&self) {
        if let Some(limiter) = &self.session.limiter {
            limiter.received();
        }
    }

    fn pay(&self, usage: &Usage) {
        self.session.budget.pay(usage);
        self.session.node.pay(usage);
        if let Some(limiter) = &self.session.limiter {
            limiter.count(usage.tokens());
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let (Some(limiter), Some(call)) = (&self.session.limiter, self.call) {
            limiter.end(call);
        }
    }
}

impl Context {
    /// Returns the remembered answer to this request, or makes the call. The call waits for its turn at the endpoint
    /// and is retried according to the node's `retry`; each attempt is counted. The answer is stored, whatever happens
    /// to the row.
    ///
    /// ```
    /// use futures::future::BoxFuture;
    /// use searchmill_engine::operator::{Attempt, Call, CallFailure, Prices, Usage, testing::Harness};
    ///
    /// struct Echo {
    ///     text: String,
    ///     prices: Prices,
    /// }
    ///
    /// impl Call for Echo {
    ///     type Answer = String;
    ///
    ///     fn request(&self) -> &[u8] {
    ///         self.text.as_bytes()
    ///     }
    ///
    ///     fn prices(&self) -> &Prices {
    ///         &self.prices
    ///     }
    ///
    ///     fn send<'a>(&'a self, _attempt: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>> {
    ///         Box::pin(async { Ok((self.text.clone().into_bytes(), Usage::default())) })
    ///     }
    ///
    ///     fn read(&self, answer: &[u8]) -> Result<String, CallFailure> {
    ///         Ok(String::from_utf8_lossy(answer).into_owned())
    ///     }
    /// }
    ///
    /// let harness = Harness::new();
    /// let context = harness.context();
    /// let echo = Echo { text: "hello".to_owned(), prices: Prices::default() };
    /// let answer = context.block_on(context.call(&echo));
    /// assert!(answer.is_ok_and(|answer| answer == "hello"));
    /// ```
    ///
    /// # Errors
    /// Fails if attempts run out, the budget is used up, or the run stops.
    pub async fn call<C: Call>(&self, call: &C) -> Result<C::Answer, RowFailure> {
        // Without a store (tests of operators), nothing is remembered.
        let Some(journal) = &self.session().journal else { return self.ask(call, None).await };
        // An answer of an earlier version that this one cannot parse is asked for again.
        match self.patiently(journal.begin(call.request(), &|kept| call.read(&kept.response).is_ok())).await? {
            Begun::Known(kept) => call
                .read(&kept.response)
                .map_err(|_| RowFailure::new(FailureKind::Data, "a cached answer cannot be parsed")),
            Begun::Ask(open) => self.ask(call, Some(open.as_ref())).await,
            Begun::Failed(message) => Err(RowFailure::new(FailureKind::Cancelled, message)),
        }
    }

    /// Sends the call until it is answered, is refused or postponed, or attempts run out. What comes is stored in `open`.
    async fn ask<C: Call>(&self, call: &C, open: Option<&dyn OpenCall>) -> Result<C::Answer, RowFailure> {
        let session = self.session();
        let turn = match &session.limiter {
            Some(limiter) => Some(self.patiently(limiter.turn(&session.caller)).await?),
            None => None,
        };
        let answer = self.answered(call, open, turn.as_ref()).await?;
        if let Some(turn) = &turn {
            turn.answered();
        }
        Ok(answer)
    }

    /// Repeats the call as `retry` says until there is an answer that can be parsed.
    async fn answered<C: Call>(
        &self,
        call: &C,
        open: Option<&dyn OpenCall>,
        turn: Option<&Turn>,
    ) -> Result<C::Answer, RowFailure> {
        let (retry, attempts) = (self.retry(), &self.session().attempts);
        let mut number = 1;
        loop {
            let failure = match self.attempt(call, number, open).await? {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // Neither answered nor failed: the next run makes the call.
            if failure.kind.is_postponed() {
                return Err(failure.of_row(calls(call, number)));
            }
            attempts.failed(call.asks_a_model());
            if failure.kind == FailureKind::Refused || number >= retry.max_attempts {
                if let Some(turn) = turn {
                    turn.failed(&failure, retry.stop_after);
                }
                return Err(failure.of_row(calls(call, number)));
            }
            if let Some(turn) = turn {
                turn.goes_on();
            }
            number += 1;
            let wait = retry.wait(number, failure.retry_after);
            // The server means all its callers: the calls of other rows wait, too.
            if (failure.kind == FailureKind::RateLimited || failure.retry_after.is_some())
                && let Some(limiter) = &self.session().limiter
            {
                limiter.pause(wait);
            }
            attempts.retried(&failure);
            let (most, node, message) = (retry.max_attempts, &self.session().caller, &failure.message);
            tracing::info!("`{node}`: attempt {number} of {most} in {:.1} s: {message}", wait.as_secs_f64());
            self.progress().retried(&Retry { attempt: number, of: most, wait, reason: failure.label(), message });
            // Up to 25 % longer, so that rows rejected together do not retry together.
            if !self.pause(wait.mul_f64(1.0 + 0.25 * rand::random::<f64>())).await {
                return Err(RowFailure { kind: FailureKind::Cancelled, ..failure.of_row(calls(call, number - 1)) });
            }
        }
    }

    /// Makes one attempt when its turn has come; it is counted whatever its outcome.
    async fn attempt<C: Call>(
        &self,
        call: &C,
        number: u32,
        open: Option<&dyn OpenCall>,
    ) -> Result<Result<C::Answer, CallFailure>, RowFailure> {
        let attempt = match self.admit(number).await {
            Ok(attempt) => attempt,
            Err(mut failure) => {
                failure.usage += calls(call, number - 1);
                return Err(failure);
            }
        };
        let outcome = call.send(&attempt).await;
        // What a failed attempt used is paid for as well.
        let used = outcome.as_ref().map_or(calls(call, 1), |(_, usage)| *usage);
        attempt.pay(&used.at(call.prices()));
        let (response, usage) = match outcome {
            Ok(sent) => sent,
            Err(failure) => return Ok(Err(failure)),
        };
        attempt.received();
        let Usage { calls, service_calls, .. } = calls(call, number);
        let usage = Usage { calls, service_calls, ..usage };
        let kept = KeptCall { response, usage: usage.at(call.prices()) };
        // Stored before it is parsed: it is paid for, whatever this version makes of it.
        if let Some(open) = open {
            open.keep(&kept);
        }
        Ok(call.read(&kept.response))
    }

    /// Waits for permission for one attempt: the endpoint's limits, pauses, the run's budget.
    async fn admit(&self, number: u32) -> Result<Attempt, RowFailure> {
        let session = self.session();
        self.check_open()?;
        if session.budget.is_empty() {
            // Refuse before any wait: after the wait the call would be refused anyway.
            session.budget.take_call().map_err(refused)?;
        }
        let slot = match &session.limiter {
            Some(limiter) => self.patiently(limiter.slot()).await?,
            None => None,
        };
        let mut call = None;
        if let Some(limiter) = &session.limiter {
            call = Some(loop {
                self.check_open()?;
                match limiter.begin(Instant::now()) {
                    Ok(call) => break call,
                    Err(_) if self.is_draining() => return Err(interrupted()),
                    Err(wait) => self.patiently(tokio::time::sleep(wait.min(STEP))).await?,
                }
            });
        }
        // From here on, dropping the attempt gives its slot back and ends its call.
        let attempt = Attempt { number, session: session.clone(), call, _slot: slot };
        if let Some(permit) = &session.permit {
            permit.check().await?;
        }
        // The budget comes last: what is taken from it is not given back.
        session.budget.take_call().map_err(refused)?;
        session.node.take_call().map_err(refused)?;
        Ok(attempt)
    }

    fn check_open(&self) -> Result<(), RowFailure> {
        self.session().closed().map_or(Ok(()), |why| Err(RowFailure::new(FailureKind::Cancelled, why.message)))
    }

    /// Waits; returns `false` if the run was stopped meanwhile. While the run is draining, it waits at most a second.
    pub async fn pause(&self, wait: Duration) -> bool {
        let mut left = wait;
        while !left.is_zero() {
            if self.is_cancelled() || (self.is_draining() && left > PATIENCE) {
                break;
            }
            let step = left.min(STEP);
            tokio::time::sleep(step).await;
            left -= step;
        }
        left.is_zero() && !self.is_cancelled()
    }

    /// Waits for a future, unless the run is stopping.
    async fn patiently<T>(&self, wait: impl Future<Output = T>) -> Result<T, RowFailure> {
        let mut wait = std::pin::pin!(wait);
        loop {
            if self.is_cancelled() {
                return Err(interrupted());
            }
            if let Ok(done) = tokio::time::timeout(STEP, wait.as_mut()).await {
                return Ok(done);
            }
            // Received answers are stored, so the row need not wait for the rest.
            if self.is_draining() {
                return Err(interrupted());
            }
        }
    }
}

fn interrupted() -> RowFailure {
    RowFailure::new(FailureKind::Cancelled, "interrupted")
}

fn refused(refusal: Refusal) -> RowFailure {
    match refusal {
        Refusal::Limit(limit) => RowFailure::new(FailureKind::Budget, format!("the budget is used up: {limit}")),
        Refusal::Fault(fault) => RowFailure::new(FailureKind::Cancelled, fault),
    }
}
