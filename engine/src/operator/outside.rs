//! Calls to the outside as a row kernel makes them: what is known is recalled, what is new waits for its turn, is counted,
//! and is kept at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
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

/// Remembers the calls of one row; implemented by the driver. A call is known by what is sent: whoever sends the same
/// request to the same model as the same sample does not pay again.
pub trait CallJournal: Send + Sync {
    /// The next call of the row: a kept answer that `accept` takes, or leave to ask. While another row of this process asks
    /// the same, it waits for that.
    fn begin<'a>(
        &'a self,
        request: &'a [u8],
        accept: &'a (dyn Fn(&KeptCall) -> bool + Send + Sync),
    ) -> BoxFuture<'a, Begun>;
}

/// How a call begins.
pub enum Begun {
    /// With its answer.
    Known(KeptCall),
    /// It has to be asked.
    Ask(Box<dyn OpenCall>),
    /// Not at all: the memo cannot be read.
    Failed(String),
}

/// A call that is being asked. Dropped without an answer, others may ask it.
pub trait OpenCall: Send {
    /// Keeps the answer. What goes wrong here fails the node, not the call: it is paid.
    fn keep(&mut self, call: &KeptCall);
}

/// The right to make calls for a node; implemented by the driver.
pub trait Tenure: Send + Sync {
    /// Asked before every call.
    fn check(&self) -> BoxFuture<'_, Result<(), RowFailure>>;
}

/// What a run shares between its nodes about the outside.
#[derive(Clone, Default)]
pub struct Outside {
    /// What it may spend, and has.
    pub purse: Arc<Purse>,
    /// What this node has spent.
    pub node: Arc<Purse>,
    /// The node's name, by which an endpoint tells its callers apart.
    pub caller: Arc<str>,
    /// The way to the endpoint that the node asks.
    pub gate: Option<Arc<Gate>>,
    /// Calls of the row at work.
    pub journal: Option<Arc<dyn CallJournal>>,
    /// May the node still make calls?
    pub tenure: Option<Arc<dyn Tenure>>,
    /// Strikes the run's secrets out of what is stored or shown.
    pub redactor: Redactor,
}

impl Outside {
    /// Why the node asks nothing any more, if so.
    #[must_use]
    pub fn closed(&self) -> Option<String> {
        self.gate.as_ref()?.closed(&self.caller)
    }
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

    /// The call was answered.
    pub fn answered(&self) {
        if let Some(gate) = &self.outside.gate {
            gate.answered(&self.outside.caller);
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
        let Some(journal) = &self.outside().journal else { return Ok(ask.await?.0) };
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
        let outside = self.outside();
        self.check_open()?;
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
                self.check_open()?;
                match gate.begin(Instant::now()) {
                    Ok(call) => break call,
                    Err(_) if self.is_draining() => return Err(interrupted()),
                    Err(wait) => self.patiently(tokio::time::sleep(wait.min(STEP))).await?,
                }
            });
        }
        let admission = Admission { outside: outside.clone(), call, _slot: slot };
        if let Some(tenure) = &outside.tenure {
            tenure.check().await?;
        }
        outside.purse.take_call().map_err(refused)?;
        outside.node.take_call().map_err(refused)?;
        Ok(admission)
    }

    /// A call is given up. Where nothing can be reached time after time, the rows that were not asked yet are postponed.
    pub fn give_up_call(&self, kind: FailureKind, why: &str) {
        if let Some(gate) = self.outside().gate.as_ref().filter(|_| kind == FailureKind::Connection) {
            gate.unreached(why);
        }
    }

    /// A call was refused for what is the same in every call: time after time, the rest is postponed likewise.
    pub fn turned_away(&self, why: &str) {
        let outside = self.outside();
        if let Some(gate) = &outside.gate {
            gate.turned_away(&outside.caller, why);
        }
    }

    fn check_open(&self) -> Result<(), RowFailure> {
        self.outside().closed().map_or(Ok(()), |why| Err(RowFailure::new(FailureKind::Cancelled, why)))
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
