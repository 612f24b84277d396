//! Calls to the outside as a row kernel makes them: what is known is recalled, what is new waits for its turn, is counted,
//! and is kept at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::context::Context;
use super::gate::Gate;
use super::kernel::{FailureKind, RowFailure};
use super::money::{Purse, Usage};
use super::redactor::Redactor;

/// How long a wait lasts before it is asked whether the run was told to stop.
const STEP: Duration = Duration::from_millis(200);

/// What an endpoint answered, as the operator writes it down, and what that cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCall {
    /// The answer, in a form that the operator can read back.
    pub response: Vec<u8>,
    /// What it cost, failed attempts included.
    pub usage: Usage,
}

/// Remembers the calls of one row; implemented by the driver.
pub trait CallJournal: Send + Sync {
    /// What was answered to that request in an earlier run, which did not finish the row.
    fn recall(&self, ordinal: u32, request: &[u8]) -> Option<KeptCall>;
    /// Keeps an answer. What goes wrong here fails the node, not the call: it is paid.
    fn keep(&self, ordinal: u32, request: &[u8], call: &KeptCall);
}

/// What a run shares between its nodes about the outside.
#[derive(Clone, Default)]
pub struct Outside {
    /// What it may spend, and has.
    pub purse: Arc<Purse>,
    /// What this node has spent.
    pub node: Arc<Purse>,
    /// The way to the endpoint that the node asks.
    pub gate: Option<Arc<Gate>>,
    /// Calls of the row at work.
    pub journal: Option<Arc<dyn CallJournal>>,
    /// Strikes the run's secrets out of what is stored or shown.
    pub redactor: Redactor,
}

/// Leave to make one call. Dropped, the call is over.
pub struct Admission {
    outside: Outside,
    call: Option<u64>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Admission {
    /// The endpoint said something: it is not silent.
    pub fn heard(&self) {
        if let Some(gate) = &self.outside.gate {
            gate.heard();
        }
    }

    /// Counts what the call cost.
    pub fn pay(&self, usage: &Usage) {
        self.outside.purse.pay(usage);
        self.outside.node.pay(usage);
        if let Some(gate) = &self.outside.gate {
            gate.count(usage.tokens());
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let (Some(gate), Some(call)) = (&self.outside.gate, self.call) {
            gate.end(call);
        }
    }
}

impl Context {
    /// What an endpoint answered to the `ordinal`-th request of this row in an earlier run that was cut short.
    #[must_use]
    pub fn recall_call(&self, ordinal: u32, request: &[u8]) -> Option<KeptCall> {
        self.outside().journal.as_ref()?.recall(ordinal, request)
    }

    /// Keeps an answer, so that it is paid once even if the row is not finished.
    pub fn keep_call(&self, ordinal: u32, request: &[u8], call: &KeptCall) {
        if let Some(journal) = &self.outside().journal {
            journal.keep(ordinal, request, call);
        }
    }

    /// Waits for the leave to make one call: limits of the endpoint, pauses, the budget of the run.
    ///
    /// # Errors
    /// When the budget is used up, or the run is told to stop.
    pub async fn admit_call(&self) -> Result<Admission, RowFailure> {
        let outside = self.outside();
        if outside.purse.is_empty() {
            // Said before any wait: whoever waits for a slot would only wait to be refused.
            outside.purse.take_call().map_err(refused)?;
        }
        let slot = match &outside.gate {
            Some(gate) => self.patiently(gate.slot()).await?,
            None => None,
        };
        let mut call = None;
        if let Some(gate) = &outside.gate {
            call = Some(loop {
                match gate.begin(Instant::now()) {
                    Ok(call) => break call,
                    Err(wait) => self.patiently(tokio::time::sleep(wait.min(STEP))).await?,
                }
            });
        }
        let admission = Admission { outside: outside.clone(), call, _slot: slot };
        outside.purse.take_call().map_err(refused)?;
        outside.node.take_call().map_err(refused)?;
        Ok(admission)
    }

    /// Nobody asks this node's endpoint for that long.
    pub fn pause_endpoint(&self, wait: Duration) {
        if let Some(gate) = &self.outside().gate {
            gate.pause(wait);
        }
    }

    /// Waits for something, unless the run is told to stop.
    async fn patiently<T>(&self, wait: impl Future<Output = T>) -> Result<T, RowFailure> {
        let mut wait = std::pin::pin!(wait);
        loop {
            if self.is_cancelled() {
                return Err(RowFailure::new(FailureKind::Cancelled, "interrupted"));
            }
            if let Ok(done) = tokio::time::timeout(STEP, wait.as_mut()).await {
                return Ok(done);
            }
        }
    }
}

fn refused(limit: String) -> RowFailure {
    RowFailure::new(FailureKind::Budget, format!("the budget is used up: {limit}"))
}
