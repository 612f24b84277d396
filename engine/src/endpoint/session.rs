//! State that a run's nodes share for external calls: budget, limits, known calls.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::failure::{Attempts, RowFailure};
use super::money::{Budget, Usage};
use super::rate_limiter::RateLimiter;
use super::redactor::Redactor;
use crate::error::OperatorError;

/// An endpoint's answer as it came, and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCall {
    /// The answer, in a form that the operator can parse.
    pub response: Vec<u8>,
    /// Its cost, failed attempts included.
    pub usage: Usage,
}

/// Remembers the calls of one row; implemented by the driver. Requests identify calls: the same request to the same
/// model for the same sample is not paid for again.
pub(crate) trait CallJournal: Send + Sync {
    /// Begins the next call of the row: returns a remembered answer that fits, or permission to send it.
    /// While another row of this process makes the same call, it waits for that one.
    fn begin<'a>(&'a self, sent: &'a [u8], fits: &'a (dyn Fn(&KeptCall) -> bool + Send + Sync))
    -> BoxFuture<'a, Begun>;
}

/// The start of a call.
pub(crate) enum Begun {
    /// The answer is known.
    Known(KeptCall),
    /// The call must be made.
    Ask(Box<dyn OpenCall>),
    /// The call must not be made: the memo cannot be read.
    Failed(String),
}

/// A call in progress. Dropped without an answer, it may be made by others.
pub(crate) trait OpenCall: Send + Sync {
    /// Stores an answer, also one that cannot be parsed. An error here fails the node, not the call: the call is paid for.
    fn keep(&self, call: &KeptCall);
}

/// The right to make calls for a node; implemented by the driver.
pub(crate) trait CallPermit: Send + Sync {
    /// Checked before every call.
    fn check(&self) -> BoxFuture<'_, Result<(), RowFailure>>;
}

/// State for the calls to one service that a node observes beside its endpoint.
#[derive(Clone, Default)]
pub(crate) struct ObservedSession {
    /// The rate limiter of the service.
    pub(crate) limiter: Option<Arc<RateLimiter>>,
    /// Names the node and the service: its calls end apart from those to others at the same address.
    pub(crate) caller: Arc<str>,
    /// Observations by content, shared by all rows, nodes and models.
    pub(crate) journal: Option<Arc<dyn CallJournal>>,
    /// Failures that the current row was told.
    pub(crate) failures: Option<Arc<dyn CallJournal>>,
}

/// Says whether all services of a node run.
pub(crate) type Alive = Arc<dyn Fn() -> bool + Send + Sync>;

/// State that a run's nodes share for external calls.
#[derive(Clone, Default)]
pub(crate) struct EndpointSession {
    /// Whether the node's services run, if it has any.
    pub(crate) services: Option<Alive>,
    /// The run's budget and spending.
    pub(crate) budget: Arc<Budget>,
    /// The node's spending.
    pub(crate) node: Arc<Budget>,
    /// The node's attempts at calls that failed.
    pub(crate) attempts: Arc<Attempts>,
    /// The node's id; limits per caller use it.
    pub(crate) caller: Arc<str>,
    /// The rate limiter of the node's endpoint.
    pub(crate) limiter: Option<Arc<RateLimiter>>,
    /// The calls of the current row.
    pub(crate) journal: Option<Arc<dyn CallJournal>>,
    /// The right to make calls, if it must be checked.
    pub(crate) permit: Option<Arc<dyn CallPermit>>,
    /// Redacts the run's secrets in stored or shown text.
    pub(crate) redactor: Redactor,
    /// The services that the node observes, in the order of its declaration.
    pub(crate) observed: Vec<ObservedSession>,
}

impl EndpointSession {
    /// Returns the rate limiters of the node's endpoint and of the services that it observes.
    pub(crate) fn limiters(&self) -> impl Iterator<Item = &Arc<RateLimiter>> {
        self.limiter.iter().chain(self.observed.iter().filter_map(|observed| observed.limiter.as_ref()))
    }

    /// Returns why the node makes no more calls, if it does not.
    pub(crate) fn closed(&self) -> Option<OperatorError> {
        self.limiter.as_ref()?.closed(&self.caller)
    }

    /// Returns why the node makes no more calls to its endpoint or to a service that it observes.
    pub(crate) fn any_closed(&self) -> Option<OperatorError> {
        let mut observed = self.observed.iter();
        self.closed().or_else(|| observed.find_map(|observed| observed.limiter.as_ref()?.closed(&observed.caller)))
    }
}
