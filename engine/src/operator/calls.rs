//! Calls to the outside: a known answer is returned from the journal; a new call waits for its turn, is counted, retried,
//! and its answer is kept.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::context::Context;
use super::endpoint_session::{Begun, EndpointSession, KeptCall};
use super::failure::{FailureKind, RowFailure};
use super::money::{Prices, Usage};

/// How long a wait lasts before it is asked whether the run was told to stop.
const STEP: Duration = Duration::from_millis(200);

/// How long a pause may last once the run finishes only what is in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// One call to the outside, for [`Context::call`].
pub trait Call: Send + Sync {
    /// What the caller gets.
    type Answer: Send;

    /// Identifies the call: a second call with the same bytes to the same model is not paid for again.
    fn request(&self) -> &[u8];

    /// What the endpoint charges.
    fn prices(&self) -> &Prices;

    /// Sends the call once. Returns the answer in a form that [`Call::read`] understands, and what this attempt used.
    fn send<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>>;

    /// Reads an answer, new or kept. A kept answer that cannot be read is asked for again.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read(&self, answer: &[u8]) -> Result<Self::Answer, String>;
}

/// Why one attempt at a call failed.
#[derive(Clone, Debug)]
pub struct CallFailure {
    /// Why. Anything but [`FailureKind::Refused`] is tried again.
    pub kind: FailureKind,
    /// In words.
    pub message: String,
    /// The response body, shortened.
    pub detail: Option<String>,
    /// How long the endpoint asks to be left alone.
    pub retry_after: Option<Duration>,
    /// Refused for something that all calls have in common (a key, an address): after several, the rest is postponed.
    pub same_for_all: bool,
}

impl CallFailure {
    /// A failure of one call.
    #[must_use]
    pub fn new(kind: FailureKind, message: String, detail: Option<String>) -> Self {
        Self { kind, message, detail, retry_after: None, same_for_all: false }
    }

    fn of_row(self, attempts: u32) -> RowFailure {
        let usage = Usage { calls: u64::from(attempts), ..Usage::default() };
        RowFailure { kind: self.kind, message: self.message, attempts, detail: self.detail, usage }
    }
}

/// Permission for one attempt at a call. The attempt ends when it is dropped.
pub struct Attempt {
    number: u32,
    session: EndpointSession,
    call: Option<u64>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Attempt {
    /// Counts the attempts at this call, from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Notes that the endpoint sent something: it is not silent.
    pub fn heard(&self) {
        if let Some(limiter) = &self.session.limiter {
            limiter.heard();
        }
    }

    fn answered(&self) {
        if let Some(limiter) = &self.session.limiter {
            limiter.answered(&self.session.caller);
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
    /// Returns the kept answer to this request, or makes the call. It waits for its turn at the endpoint, is retried as the
    /// node's `retry` says, and each attempt is counted. The answer is kept, whatever becomes of the row.
    ///
    /// # Errors
    /// When attempts run out, the budget is used up, or the run stops.
    pub async fn call<C: Call>(&self, call: &C) -> Result<C::Answer, RowFailure> {
        let read = |kept: &KeptCall| {
            call.read(&kept.response).map_err(|message| RowFailure::new(FailureKind::BadResponse, message))
        };
        let Some(journal) = &self.session().journal else { return read(&self.ask(call).await?) };
        let accept = |kept: &KeptCall| call.read(&kept.response).is_ok();
        match self.patiently(journal.begin(call.request(), &accept)).await? {
            Begun::Known(kept) => call
                .read(&kept.response)
                .map_err(|_| RowFailure::new(FailureKind::Data, "a kept answer cannot be read")),
            Begun::Ask(mut open) => {
                let kept = self.ask(call).await?;
                let answer = read(&kept)?;
                open.keep(&kept);
                Ok(answer)
            }
            Begun::Failed(message) => Err(RowFailure::new(FailureKind::Cancelled, message)),
        }
    }

    /// Asks until there is an answer, asking again cannot help, or attempts run out.
    async fn ask<C: Call>(&self, call: &C) -> Result<KeptCall, RowFailure> {
        let retry = self.retry();
        let mut number = 1;
        loop {
            let failure = match self.attempt(call, number).await? {
                Ok(kept) => return Ok(kept),
                Err(failure) => failure,
            };
            if failure.kind == FailureKind::Refused || number >= retry.max_attempts {
                self.give_up(&failure);
                return Err(failure.of_row(number));
            }
            number += 1;
            let wait = retry.wait(number, failure.retry_after);
            if failure.kind == FailureKind::RateLimited || failure.retry_after.is_some() {
                self.pause_endpoint(wait);
            }
            // Up to a quarter longer, so that rows turned away together do not come back together.
            if !self.pause(wait.mul_f64(1.0 + 0.25 * rand::random::<f64>())).await {
                return Err(RowFailure { kind: FailureKind::Cancelled, ..failure.of_row(number - 1) });
            }
        }
    }

    /// One attempt, when its turn has come: counted whatever its outcome.
    async fn attempt<C: Call>(&self, call: &C, number: u32) -> Result<Result<KeptCall, CallFailure>, RowFailure> {
        let attempt = match self.admit(number).await {
            Ok(attempt) => attempt,
            Err(mut failure) => {
                failure.usage.calls += u64::from(number - 1);
                return Err(failure);
            }
        };
        let outcome = call.send(&attempt).await;
        let one = Usage { calls: 1, ..Usage::default() };
        let used = outcome.as_ref().map_or(one, |(_, usage)| *usage);
        attempt.pay(&used.at(call.prices()));
        Ok(outcome.map(|(response, usage)| {
            attempt.answered();
            let usage = Usage { calls: u64::from(number), ..usage };
            KeptCall { response, usage: usage.at(call.prices()) }
        }))
    }

    /// Waits for permission for one attempt: limits of the endpoint, pauses, the budget of the run.
    async fn admit(&self, number: u32) -> Result<Attempt, RowFailure> {
        let session = self.session();
        self.check_open()?;
        if session.budget.is_empty() {
            // Said before any wait: whoever waits for a slot would only wait to be refused.
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
        let attempt = Attempt { number, session: session.clone(), call, _slot: slot };
        if let Some(tenure) = &session.tenure {
            tenure.check().await?;
        }
        session.budget.take_call().map_err(refused)?;
        session.node.take_call().map_err(refused)?;
        Ok(attempt)
    }

    /// Notes a call that failed for good. Where many in a row cannot connect, or are refused for the same reason, the rows
    /// that were not asked yet are postponed.
    fn give_up(&self, failure: &CallFailure) {
        let session = self.session();
        let Some(limiter) = &session.limiter else { return };
        if failure.kind == FailureKind::Connection {
            limiter.unreached(&failure.message);
        }
        if failure.same_for_all {
            limiter.turned_away(&session.caller, &failure.message);
        }
    }

    fn check_open(&self) -> Result<(), RowFailure> {
        self.session().closed().map_or(Ok(()), |why| Err(RowFailure::new(FailureKind::Cancelled, why)))
    }

    /// No row calls this node's endpoint for that long.
    fn pause_endpoint(&self, wait: Duration) {
        if let Some(limiter) = &self.session().limiter {
            limiter.pause(wait);
        }
    }

    /// Waits; `false` when the run was told to stop meanwhile. Told to finish what is in flight, it waits for a moment only.
    async fn pause(&self, wait: Duration) -> bool {
        let mut left = wait;
        let stops = |left: Duration| self.is_cancelled() || (self.is_draining() && left > PATIENCE);
        while !left.is_zero() && !stops(left) {
            let step = left.min(STEP);
            tokio::time::sleep(step).await;
            left -= step;
        }
        left.is_zero() && !self.is_cancelled()
    }

    /// Waits for something, unless the run is told to stop.
    async fn patiently<T>(&self, wait: impl Future<Output = T>) -> Result<T, RowFailure> {
        let mut wait = std::pin::pin!(wait);
        loop {
            if self.is_cancelled() {
                return Err(interrupted());
            }
            if let Ok(done) = tokio::time::timeout(STEP, wait.as_mut()).await {
                return Ok(done);
            }
            // What is answered of the row is kept: it need not wait for the rest.
            if self.is_draining() {
                return Err(interrupted());
            }
        }
    }
}

fn interrupted() -> RowFailure {
    RowFailure::new(FailureKind::Cancelled, "interrupted")
}

fn refused(limit: String) -> RowFailure {
    RowFailure::new(FailureKind::Budget, format!("the budget is used up: {limit}"))
}
