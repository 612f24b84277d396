//! Policy `endpoint`: a model behind any OpenAI-compatible chat-completions server.

mod exchange;
mod request;
mod response;
mod retry_after;
mod stream;

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{Context, FailureKind, KeptCall, OperatorError, Prices, Redactor, RowFailure};
use searchmill_schemas::{Message, Question};
use serde::{Deserialize, Serialize};

use self::exchange::Exchange;
use self::request::{Conversation, RequestFrame};
use self::response::Heard;
use super::{Actor, EndpointParams, Policy, Reply};
use crate::episode::Offer;
use crate::protocol::Protocol;

/// A model behind a server.
pub struct Endpoint {
    frame: RequestFrame,
    exchange: Exchange,
}

impl Endpoint {
    /// Looks the secret up and lays out what is the same in every request.
    pub fn open(params: &EndpointParams, protocol: &dyn Protocol, context: &Context) -> Result<Self, OperatorError> {
        let api_key = params.api_key.as_ref().map(|secret| context.secret(secret)).transpose()?;
        let timeout = Duration::from_secs_f64(params.timeout_seconds);
        Ok(Self {
            frame: RequestFrame::new(params, protocol.tools(), protocol.stop()),
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
    fn act<'a>(&'a mut self, messages: &'a [Message], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let asked = self.conversation.next(messages, offer);
        let mut chance = crate::chance::stream(messages.len() as u64, self.row, self.sample);
        async move {
            let exchange = &self.endpoint.exchange;
            let ask = async {
                let (heard, calls) = exchange.ask(asked.body, self.context, &mut chance).await?;
                let kept = Kept { heard, calls };
                let unwritten = |error: serde_json::Error| RowFailure::new(FailureKind::BadResponse, error.to_string());
                let response = serde_json::to_vec(&kept).map_err(unwritten)?;
                let reply = kept
                    .reply(self.context.redactor())
                    .map_err(|message| RowFailure::new(FailureKind::BadResponse, message))?;
                let call = KeptCall { response, usage: reply.usage().at(&exchange.prices) };
                Ok((reply, call))
            };
            let redactor = self.context.redactor();
            let read = |response: &[u8]| serde_json::from_slice::<Kept>(response).ok()?.reply(redactor).ok();
            self.context.call(&asked.identity, read, ask).await
        }
        .boxed()
    }
}

/// An answer as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    heard: Heard,
    /// Attempts that it took.
    calls: u64,
}

impl Kept {
    fn reply(&self, redactor: &Redactor) -> Result<Reply, String> {
        let mut message = self.heard.message()?;
        response::clean_message(&mut message, redactor);
        Ok(Reply { message, model: self.heard.model(), calls: self.calls })
    }
}
