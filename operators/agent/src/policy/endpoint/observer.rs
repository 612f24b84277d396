//! A conversation beside the rollouts, for tools: each request is an observation, known by its content alone.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{
    Attempt, Call, CallFailure, Context, FailureKind, Observed, Prices, RowFailure, Usage,
};
use searchmill_schemas::Message;

use super::request::Conversation;
use super::{Answer, Asking, Endpoint};
use crate::episode::Offer;
use crate::policy::{Actor, Policy, Reply};

/// A conversation with the server whose requests are observations of the service at a place of the declaration.
pub(crate) struct Observer<'a> {
    endpoint: &'a Endpoint,
    conversation: Conversation<'a>,
    place: usize,
    context: &'a Context,
    failed: bool,
}

impl<'a> Observer<'a> {
    /// A new conversation; `place` is that of the endpoint among the services.
    pub(crate) fn new(endpoint: &'a Endpoint, place: usize, context: &'a Context) -> Self {
        Self { endpoint, conversation: Conversation::new(&endpoint.frame, 0), place, context, failed: false }
    }

    /// Whether the last call ended in a failure that a model can handle: an observation, too.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }
}

impl Actor for Observer<'_> {
    fn act<'a>(&'a mut self, messages: &'a [Message], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let asked = self.conversation.next(messages, offer);
        let asking = Asking { endpoint: self.endpoint, asked, context: self.context };
        let watched = Watched { asking, hopeless: AtomicBool::new(false) };
        async move {
            let tells = |_: &RowFailure| !watched.hopeless.load(Ordering::Relaxed);
            match self.context.observe(self.place, &watched, tells).await? {
                Observed::Answer(answer) => Ok(answer.reply),
                Observed::Failed { message, usage } => {
                    self.failed = true;
                    let usage = usage.at(&self.endpoint.prices());
                    Err(RowFailure { usage, ..RowFailure::new(FailureKind::BadResponse, message) })
                }
            }
        }
        .boxed()
    }
}

/// A request, and whether an attempt failed for a reason that no model can mend.
struct Watched<'a> {
    asking: Asking<'a>,
    hopeless: AtomicBool,
}

impl Call for Watched<'_> {
    type Answer = Answer;

    fn request(&self) -> &[u8] {
        self.asking.request()
    }

    fn prices(&self) -> &Prices {
        self.asking.prices()
    }

    fn send<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>> {
        let sent = self.asking.send(attempt);
        async move {
            sent.await.inspect_err(|failure| {
                self.hopeless.fetch_or(failure.same_for_all, Ordering::Relaxed);
            })
        }
        .boxed()
    }

    fn read(&self, answer: &[u8]) -> Result<Answer, CallFailure> {
        self.asking.read(answer)
    }
}
