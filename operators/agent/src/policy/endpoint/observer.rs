//! A model beside the rollouts, for tools: each request is an observation, known by its content alone.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{FailureKind, Observed, Prices, RowFailure};
use searchmill_schemas::Message;

use super::Endpoint;
use crate::policy::{ChatModel, Reply, RowSample};

/// A model whose requests are observations of the service at a place of the declaration.
pub(crate) struct Observer<'a> {
    pub(crate) endpoint: &'a Endpoint,
    /// Place of the endpoint among the services.
    pub(crate) place: usize,
    /// Whether the last call ended in a failure that a model can handle: an observation, too.
    pub(crate) has_failed: AtomicBool,
}

impl ChatModel for Observer<'_> {
    fn prices(&self) -> Prices {
        ChatModel::prices(self.endpoint)
    }

    fn reply<'a>(&'a self, messages: &'a [Message], sample: RowSample<'a>) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let asking = self.endpoint.asking(messages, sample);
        async move {
            let observed = sample.context.observe(self.place, &asking, |_| !asking.hopeless.load(Ordering::Relaxed));
            match observed.await? {
                Observed::Answer(answer) => Ok(answer.reply),
                Observed::Failed { message, usage } => {
                    self.has_failed.store(true, Ordering::Relaxed);
                    let usage = usage.at(&self.prices());
                    Err(RowFailure { usage, ..RowFailure::new(FailureKind::BadResponse, message) })
                }
            }
        }
        .boxed()
    }
}
