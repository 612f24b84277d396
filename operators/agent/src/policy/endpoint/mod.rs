//! Policy `endpoint`: a model behind any OpenAI-compatible chat-completions server.

mod exchange;
mod request;
mod response;
mod retry_after;
mod stream;

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{
    Attempt, Call, CallFailure, Context, FailureKind, OperatorError, Prices, Redactor, RowFailure, Usage,
};
use searchmill_schemas::{Message, Question};
use serde::{Deserialize, Serialize};

use self::exchange::Exchange;
use self::request::{Asked, Conversation, RequestFrame};
use self::response::Heard;
use super::{Actor, EndpointParams, Policy, Reply};
use crate::episode::Offer;
use crate::protocol::Protocol;

/// A model on a server.
pub struct Endpoint {
    frame: RequestFrame,
    exchange: Exchange,
}

impl Endpoint {
    /// Resolves the secret and prepares the constant part of every request.
    pub fn open(params: &EndpointParams, protocol: &dyn Protocol, context: &Context) -> Result<Self, OperatorError> {
        let frame = RequestFrame::new(params, protocol.tools(), protocol.stop());
        Ok(Self { frame, exchange: Exchange::open(params, context)? })
    }
}

impl Policy for Endpoint {
    fn name(&self) -> &'static str {
        "endpoint"
    }

    fn prices(&self) -> Prices {
        self.exchange.prices.clone()
    }

    fn begin<'a>(&'a self, _question: &'a Question, sample: u32, context: &'a Context) -> Box<dyn Actor + 'a> {
        let conversation = Conversation::new(&self.frame, sample);
        Box::new(Caller { endpoint: self, conversation, context })
    }
}

/// One conversation with the server.
struct Caller<'a> {
    endpoint: &'a Endpoint,
    conversation: Conversation<'a>,
    context: &'a Context,
}

impl Actor for Caller<'_> {
    fn act<'a>(&'a mut self, messages: &'a [Message], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let asked = self.conversation.next(messages, offer);
        let asking = Asking { exchange: &self.endpoint.exchange, asked, context: self.context };
        async move { asking.context.call(&asking).await }.boxed()
    }
}

/// One request to the server.
struct Asking<'a> {
    exchange: &'a Exchange,
    asked: Asked,
    context: &'a Context,
}

impl Call for Asking<'_> {
    type Answer = Reply;

    fn request(&self) -> &[u8] {
        &self.asked.identity
    }

    fn prices(&self) -> &Prices {
        &self.exchange.prices
    }

    fn send<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>> {
        async move {
            let heard = self.exchange.attempt(self.asked.body.clone(), self.context, attempt).await?;
            let (usage, calls) = (heard.usage(), u64::from(attempt.number()));
            let kept = serde_json::to_vec(&Kept { heard, calls });
            kept.map(|kept| (kept, usage))
                .map_err(|error| CallFailure::new(FailureKind::BadResponse, error.to_string(), None))
        }
        .boxed()
    }

    fn read(&self, answer: &[u8]) -> Result<Reply, String> {
        let kept: Kept = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
        kept.reply(self.context.redactor())
    }
}

/// An answer in its stored form.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    heard: Heard,
    /// Number of attempts.
    calls: u64,
}

impl Kept {
    fn reply(&self, redactor: &Redactor) -> Result<Reply, String> {
        let mut message = self.heard.message()?;
        response::clean_message(&mut message, redactor);
        Ok(Reply { message, model: self.heard.model(), calls: self.calls })
    }
}
