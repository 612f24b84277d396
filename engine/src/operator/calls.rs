//! Calls to the outside as a row kernel makes them: what is known is recalled, what is new waits for its turn, is counted,
//! and is kept at once.

use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::context::Context;
use super::endpoint_session::{Begun, EndpointSession, KeptCall};
use super::failure::{FailureKind, RowFailure};
use super::money::Usage;

/// How long a wait lasts before it is asked whether the run was told to stop.
const STEP: Duration = Duration::from_millis(200);

/// Leave to make one call. Dropped, the call is over.
pub struct Admission {
    session: EndpointSession,
    call: Option<u64>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Admission {
    /// The endpoint said something: it is not silent.
    pub fn heard(&self) {
        if let Some(limiter) = &self.session.limiter {
            limiter.heard();
        }
    }

    /// The call was answered.
    pub fn answered(&self) {
        if let Some(limiter) = &self.session.limiter {
            limiter.answered(&self.session.caller);
        }
    }

    /// Counts what the call cost.
    pub fn pay(&self, usage: &Usage) {
        self.session.budget.pay(usage);
        self.session.node.pay(usage);
        if let Some(limiter) = &self.session.limiter {
            limiter.count(usage.tokens());
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let (Some(limiter), Some(call)) = (&self.session.limiter, self.call) {
            limiter.end(call);
        }
    }
}

impl Context {
    /// What was answered to this request before, or what `ask` gives now: that is paid once, whatever becomes of the row.
    /// `read` understands an answer that was kept; one that it does not understand is asked for again.
    ///
    /// # Errors
    /// What `ask` says, or that the run is told to stop.
    pub async fn call<T: Send>(
        &self,
        request: &[u8],
        read: impl Fn(&[u8]) -> Option<T> + Send + Sync,
        ask: impl Future<Output = Result<(T, KeptCall), RowFailure>> + Send,
    ) -> Result<T, RowFailure> {
        let Some(journal) = &self.session().journal else { return Ok(ask.await?.0) };
        let accept = |call: &KeptCall| read(&call.response).is_some();
        match self.patiently(journal.begin(request, &accept)).await? {
            Begun::Known(call) => {
                let unread = || RowFailure::new(FailureKind::Data, "a kept answer cannot be read");
                read(&call.response).ok_or_else(unread)
            }
            Begun::Ask(mut open) => {
                let (answer, call) = ask.await?;
                open.keep(&call);
                Ok(answer)
            }
            Begun::Failed(message) => Err(RowFailure::new(FailureKind::Cancelled, message)),
        }
    }

    /// Waits for the leave to make one call: limits of the endpoint, pauses, the budget of the run.
    ///
    /// # Errors
    /// When the budget is used up, or the run is told to stop.
    pub async fn admit_call(&self) -> Result<Admission, RowFailure> {
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
        let admission = Admission { session: session.clone(), call, _slot: slot };
        if let Some(tenure) = &session.tenure {
            tenure.check().await?;
        }
        session.budget.take_call().map_err(refused)?;
        session.node.take_call().map_err(refused)?;
        Ok(admission)
    }

    /// A call is given up. Where nothing can be reached time after time, the rows that were not asked yet are postponed.
    pub fn give_up_call(&self, kind: FailureKind, why: &str) {
        if let Some(limiter) = self.session().limiter.as_ref().filter(|_| kind == FailureKind::Connection) {
            limiter.unreached(why);
        }
    }

    /// A call was refused for what is the same in every call: time after time, the rest is postponed likewise.
    pub fn turned_away(&self, why: &str) {
        let session = self.session();
        if let Some(limiter) = &session.limiter {
            limiter.turned_away(&session.caller, why);
        }
    }

    fn check_open(&self) -> Result<(), RowFailure> {
        self.session().closed().map_or(Ok(()), |why| Err(RowFailure::new(FailureKind::Cancelled, why)))
    }

    /// Nobody asks this node's endpoint for that long.
    pub fn pause_endpoint(&self, wait: Duration) {
        if let Some(limiter) = &self.session().limiter {
            limiter.pause(wait);
        }
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
