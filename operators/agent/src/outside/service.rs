//! Calls to a service through the engine: remembered by content, limited, retried, counted.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{
    Attempt, Call, CallFailure, Context, FailureKind, Observed, Prices, RowFailure, Usage,
};
use serde::{Deserialize, Serialize};

use crate::tool::{Called, ToolResult, failure_of};

/// One request to a service.
pub(super) trait Exchange: Send + Sync {
    /// What the request asks for.
    type Answer: Send;

    /// Sends the request once and returns the text that is kept.
    fn attempt(&self, context: &Context, attempt: &Attempt)
    -> impl Future<Output = Result<String, CallFailure>> + Send;

    /// Reads a text, new or kept.
    ///
    /// # Errors
    /// Says why it is no answer; the request is then sent again.
    fn read(&self, text: &str) -> Result<Self::Answer, String>;
}

/// A service: its place in the declaration and its prices.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) place: usize,
    pub(super) prices: Prices,
}

/// An answer in its stored form.
#[derive(Serialize, Deserialize)]
struct StoredAnswer {
    text: String,
    /// Number of attempts.
    calls: u64,
}

struct Asking<'a, E> {
    exchange: &'a E,
    service: &'a Service,
    request: Vec<u8>,
    context: &'a Context,
    /// Whether an attempt failed for a reason that no model can mend.
    hopeless: AtomicBool,
}

impl<E: Exchange> Call for Asking<'_, E> {
    /// With its cost.
    type Answer = (E::Answer, Usage);

    fn request(&self) -> &[u8] {
        &self.request
    }

    fn prices(&self) -> &Prices {
        &self.service.prices
    }

    fn asks_a_model(&self) -> bool {
        false
    }

    fn send<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>> {
        async move {
            let redactor = self.context.redactor();
            match self.exchange.attempt(self.context, attempt).await {
                Ok(mut text) => {
                    // Before it is stored: the journal outlives the run.
                    redactor.clean(&mut text);
                    let answer = StoredAnswer { text, calls: u64::from(attempt.number()) };
                    let usage = Usage { calls: 1, service_calls: 1, ..Usage::default() };
                    Ok((serde_json::to_vec(&answer).map_err(bad)?, usage))
                }
                Err(mut failure) => {
                    redactor.clean_all(std::iter::once(&mut failure.message).chain(&mut failure.detail));
                    // Of several attempts one is enough: no model can mend what it met.
                    self.hopeless.fetch_or(failure.same_for_all, Ordering::Relaxed);
                    Err(failure)
                }
            }
        }
        .boxed()
    }

    fn read(&self, answer: &[u8]) -> Result<Self::Answer, CallFailure> {
        let StoredAnswer { text, calls } = serde_json::from_slice(answer).map_err(bad)?;
        let usage = Usage { calls, service_calls: calls, ..Usage::default() };
        Ok((self.exchange.read(&text).map_err(bad)?, usage.at(&self.service.prices)))
    }
}

pub(super) fn bad(error: impl std::fmt::Display) -> CallFailure {
    CallFailure::new(FailureKind::BadResponse, error.to_string(), None)
}

impl Service {
    /// Returns the answer to a request, remembered or new.
    ///
    /// # Errors
    /// If there is no answer.
    pub(super) async fn ask<E: Exchange>(
        &self,
        exchange: &E,
        request: impl Into<Vec<u8>>,
        context: &Context,
    ) -> Result<E::Answer, RowFailure> {
        match self.observe(exchange, request.into(), context, false).await? {
            Observed::Answer((answer, _)) => Ok(answer),
            Observed::Failed { message, .. } => Err(RowFailure::new(FailureKind::BadResponse, message)),
        }
    }

    /// Runs a call of a tool, and returns what the model is shown.
    ///
    /// # Errors
    /// If no model can mend the failure, the budget is used up, or the run stops.
    pub(super) async fn call<E: Exchange<Answer = ToolResult>>(
        &self,
        tool: &str,
        exchange: &E,
        request: impl Into<Vec<u8>>,
        context: &Context,
    ) -> Result<Called, RowFailure> {
        let observed = self.observe(exchange, request.into(), context, true).await;
        let outcome = observed.map(|observed| match observed {
            Observed::Answer(answer) => answer,
            Observed::Failed { message, usage } => (Err(message), usage),
        });
        shown(tool, outcome)
    }

    /// Makes a call; `tells`: a failure that a model can handle is an observation.
    async fn observe<E: Exchange>(
        &self,
        exchange: &E,
        request: Vec<u8>,
        context: &Context,
        tells: bool,
    ) -> Result<Observed<(E::Answer, Usage)>, RowFailure> {
        let asking = Asking { exchange, service: self, request, context, hopeless: AtomicBool::new(false) };
        context.observe(self.place, &asking, |_| tells && !asking.hopeless.load(Ordering::Relaxed)).await
    }
}

/// Returns what the model is shown of a call of a tool: the result or an error with the tool's name, and the cost.
///
/// # Errors
/// The failure of the call, with the tool's name.
pub(super) fn shown(tool: &str, outcome: Result<(ToolResult, Usage), RowFailure>) -> Result<Called, RowFailure> {
    match outcome {
        Ok((Ok(found), usage)) => Ok(Called { result: Ok(found), usage, failed: false }),
        Ok((Err(error), usage)) => Ok(Called { result: Err(failure_of(tool, &error)), usage, failed: true }),
        // The call comes later: it has not failed.
        Err(failure) if failure.kind.is_postponed() => Err(failure),
        Err(failure) => Err(RowFailure { message: failure_of(tool, &failure.message), ..failure }),
    }
}
