//! Policy `endpoint`: a model behind any OpenAI-compatible chat-completions server.

mod exchange;
mod request;
mod response;
mod retry_after;
mod stream;

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{Context, KeptCall, OperatorError, Prices, RowFailure};
use searchmill_schemas::{Question, Turn};

use self::exchange::Exchange;
use self::request::{Conversation, RequestFrame};
use super::{Actor, EndpointParams, Offer, Policy, Reply};

/// A model behind a server.
pub(crate) struct Endpoint {
    frame: RequestFrame,
    exchange: Exchange,
}

impl Endpoint {
    /// Looks the secret up and lays out what is the same in every request. `tools` is a JSON list.
    pub(crate) fn open(params: &EndpointParams, tools: &str, context: &Context) -> Result<Self, OperatorError> {
        let api_key = params.api_key.as_ref().map(|secret| context.secret(secret)).transpose()?;
        let timeout = Duration::from_secs_f64(params.timeout_seconds);
        Ok(Self {
            frame: RequestFrame::new(params, tools),
            exchange: Exchange::new(&params.base_url, api_key, timeout, params.stream)?.at(params.prices.as_ref()),
        })
    }
}

impl Policy for Endpoint {
    fn name(&self) -> &'static str {
        "endpoint"
    }

    fn prices(&self) -> Prices {
        self.exchange.prices.clone()
    }

    fn begin<'a>(&'a self, question: &'a Question, sample: u32, context: &'a Context) -> Box<dyn Actor + 'a> {
        let conversation = Conversation::new(&self.frame, sample);
        Box::new(Caller { endpoint: self, conversation, row: &question.id, sample, context })
    }
}

/// One conversation with the server.
struct Caller<'a> {
    endpoint: &'a Endpoint,
    conversation: Conversation<'a>,
    row: &'a str,
    sample: u32,
    context: &'a Context,
}

impl Actor for Caller<'_> {
    fn act<'a>(&'a mut self, turns: &'a [Turn], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let body = self.conversation.body(turns, offer);
        let ordinal = turns.len() as u32;
        let mut chance = crate::agent::chance::stream(turns.len() as u64, self.row, self.sample);
        async move {
            let known = self.context.recall_call(ordinal, &body);
            if let Some(reply) = known.and_then(|call| serde_json::from_slice::<Reply>(&call.response).ok()) {
                return Ok(reply);
            }
            let reply = self.endpoint.exchange.ask(body.clone(), self.context, &mut chance).await?;
            // A turn that cannot be written down is only paid for again.
            if let Ok(response) = serde_json::to_vec(&reply) {
                let usage = reply.usage().at(&self.endpoint.exchange.prices);
                self.context.keep_call(ordinal, &body, &KeptCall { response, usage });
            }
            Ok(reply)
        }
        .boxed()
    }
}
