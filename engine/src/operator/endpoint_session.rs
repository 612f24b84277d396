//! What a run shares between its nodes about the outside: budget, limits, calls that are known.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::failure::RowFailure;
use super::money::{Budget, Usage};
use super::rate_limiter::RateLimiter;
use super::redactor::Redactor;

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
pub(crate) trait CallJournal: Send + Sync {
    /// The next call of the row: a kept answer that `accept` takes, or leave to ask. While another row of this process asks
    /// the same, it waits for that.
    fn begin<'a>(
        &'a self,
        request: &'a [u8],
        accept: &'a (dyn Fn(&KeptCall) -> bool + Send + Sync),
    ) -> BoxFuture<'a, Begun>;
}

/// How a call begins.
pub(crate) enum Begun {
    /// With its answer.
    Known(KeptCall),
    /// It has to be asked.
    Ask(Box<dyn OpenCall>),
    /// Not at all: the memo cannot be read.
    Failed(String),
}

/// A call that is being asked. Dropped without an answer, others may ask it.
pub(crate) trait OpenCall: Send {
    /// Keeps the answer. What goes wrong here fails the node, not the call: it is paid.
    fn keep(&mut self, call: &KeptCall);
}

/// The right to make calls for a node; implemented by the driver.
pub(crate) trait Tenure: Send + Sync {
    /// Asked before every call.
    fn check(&self) -> BoxFuture<'_, Result<(), RowFailure>>;
}

/// What a run shares between its nodes about the outside.
#[derive(Clone, Default)]
pub(crate) struct EndpointSession {
    /// What it may spend, and has.
    pub(crate) budget: Arc<Budget>,
    /// What this node has spent.
    pub(crate) node: Arc<Budget>,
    /// The node's name, by which an endpoint tells its callers apart.
    pub(crate) caller: Arc<str>,
    /// The way to the endpoint that the node asks.
    pub(crate) limiter: Option<Arc<RateLimiter>>,
    /// Calls of the row at work.
    pub(crate) journal: Option<Arc<dyn CallJournal>>,
    /// May the node still make calls?
    pub(crate) tenure: Option<Arc<dyn Tenure>>,
    /// Strikes the run's secrets out of what is stored or shown.
    pub(crate) redactor: Redactor,
}

impl EndpointSession {
    /// Why the node asks nothing any more, if so.
    #[must_use]
    pub(crate) fn closed(&self) -> Option<String> {
        self.limiter.as_ref()?.closed(&self.caller)
    }
}
