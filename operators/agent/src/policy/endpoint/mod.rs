//! Policy `endpoint`: a model behind any OpenAI-compatible chat-completions server.

mod exchange;
mod lenient_json;
mod models;
mod observer;
mod remedy;
mod request;
mod response;
mod stream;
mod tokens;
mod wire;
mod stored_answer;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{
    Attempt, Call, CallFailure, Context, Counts, FailureKind, OperatorError, Prices, Redactor, RowFailure, Usage,
};
use searchmill_schemas::{Message, Question, SampledWith};

pub(crate) use self::observer::Observer;

use self::exchange::{Exchange, bad_response, redacted};
use self::request::{Asked, Conversation, RequestFrame};
use self::stored_answer::{Kept, Unread};
use super::{Actor, EndpointParams, Policy, Reply};
use crate::episode::Offer;
use crate::protocol::{Protocol, Seen};
use crate::tokens::{Reported, RewrittenHistory, TurnTokens};
use crate::words::one_line;

/// A model on a server.
pub struct Endpoint {
    frame: RequestFrame,
    exchange: Exchange,
    protocol: Arc<dyn Protocol>,
    /// Whether tokens are recorded: settings, and what happens to rewritten history.
    record: Option<(SampledWith, RewrittenHistory)>,
}

impl Endpoint {
    /// Resolves the secret and prepares the constant part of every request.
    pub fn open(
        params: &EndpointParams,
        protocol: Arc<dyn Protocol>,
        record: Option<RewrittenHistory>,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let frame = RequestFrame::new(params, protocol.as_ref(), record.is_some());
        let record = record.map(|record| (params.sampling(), record));
        Ok(Self { frame, exchange: Exchange::open(params, context)?, protocol, record })
    }
}

impl Policy for Endpoint {
    fn name(&self) -> &'static str {
        "endpoint"
    }

    fn prices(&self) -> Prices {
        self.exchange.prices.clone()
    }

    fn sampling(&self) -> Option<SampledWith> {
        self.record.as_ref().map(|(sampling, _)| sampling.clone())
    }

    fn begin<'a>(&'a self, _question: &'a Question, sample: u32, context: &'a Context) -> Box<dyn Actor + 'a> {
        let conversation = Conversation::new(&self.frame, sample);
        Box::new(Caller { endpoint: self, conversation, sample, reported: Reported::default(), context })
    }
}

/// One conversation with the server.
struct Caller<'a> {
    endpoint: &'a Endpoint,
    conversation: Conversation<'a>,
    sample: u32,
    reported: Reported,
    context: &'a Context,
}

impl Actor for Caller<'_> {
    fn act<'a>(&'a mut self, messages: &'a [Message], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let seen = Seen::of(messages, self.endpoint.protocol.is_in_turns());
        let asked = if seen.is_aside {
            Conversation::new(&self.endpoint.frame, self.sample).next(&seen.messages, offer)
        } else {
            self.conversation.next(&seen.messages, offer)
        };
        let asking = Asking { endpoint: self.endpoint, asked, context: self.context };
        let (reported, is_aside) = (&mut self.reported, seen.is_aside);
        async move {
            let mut aside = Reported::default();
            let reported = if is_aside { &mut aside } else { reported };
            let Answer { reply, tokens } = asking.context.call(&asking).await?;
            let Some(((prompt, turn), (_, record))) = tokens.zip(asking.endpoint.record.as_ref()) else {
                return Ok(reply);
            };
            let paid = reply.usage();
            let turn = reported.new_in(prompt, turn, messages.len(), *record);
            let turn =
                turn.map_err(|message| RowFailure { usage: paid, ..RowFailure::new(FailureKind::Data, message) })?;
            Ok(Reply { tokens: Some(turn), ..reply })
        }
        .boxed()
    }
}

/// One request to the server.
struct Asking<'a> {
    endpoint: &'a Endpoint,
    asked: Asked,
    context: &'a Context,
}

/// A read answer, with the tokens of its prompt and of the turn if they are recorded.
struct Answer {
    reply: Reply,
    tokens: Option<(Vec<u32>, TurnTokens)>,
}

impl Call for Asking<'_> {
    type Answer = Answer;

    fn request(&self) -> &[u8] {
        &self.asked.identity
    }

    fn prices(&self) -> &Prices {
        &self.endpoint.exchange.prices
    }

    fn send<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<(Vec<u8>, Usage), CallFailure>> {
        async move {
            let raw = self.endpoint.exchange.attempt(self.asked.body.clone(), self.context, attempt).await?;
            let stored = stored_answer::write(raw, u64::from(attempt.number()), self.context.redactor());
            let (stored, heard) = stored.map_err(|error| CallFailure::new(FailureKind::BadResponse, error, None))?;
            let usage = heard.map_or_else(|_| Usage { calls: 1, ..Usage::default() }, |heard| heard.usage());
            Ok((stored, usage))
        }
        .boxed()
    }

    fn read(&self, answer: &[u8]) -> Result<Answer, CallFailure> {
        let told = |failure| redacted(failure, self.context.redactor());
        let kept = Kept::read(answer, self.endpoint.exchange.stream);
        let kept = kept.map_err(|Unread { message, detail }| {
            let ending = if detail.trim().is_empty() { String::new() } else { format!(": {}", one_line(&detail)) };
            told(bad_response(format!("{message}{ending}"), detail.as_bytes()))
        })?;
        let tokens = self.endpoint.record.as_ref().map(|_| kept.heard.tokens().whole()).transpose();
        let tokens = tokens.map_err(|message| told(without_tokens(message, kept.heard.withholds_tokens())))?;
        let reply = kept.reply(self.endpoint.protocol.as_ref(), self.context.redactor(), tokens.is_some());
        // A server that ignores `stop` or takes thoughts out would do so again: asking once more only costs.
        let reply = reply.map_err(|message| told(CallFailure::new(FailureKind::Refused, message, None)))?;
        Ok(Answer { reply, tokens })
    }
}

/// The failure of an answer whose tokens are not recorded.
fn without_tokens(message: String, is_secret: bool) -> CallFailure {
    let message = if is_secret { "the answer holds a secret: its tokens are not recorded".to_owned() } else { message };
    // A server that reports none would do so for all rows.
    let counts = if is_secret { Counts::Never } else { Counts::AtFirst };
    CallFailure { same_for_all: !is_secret, counts, ..CallFailure::new(FailureKind::Refused, message, None) }
}

const IGNORED_STOP: &str = "the server ignored `stop`, so its tokens are not those of the message";

impl Kept {
    /// Returns the reply; `exact`: its text must be that of its tokens.
    fn reply(&self, protocol: &dyn Protocol, redactor: &Redactor, exact: bool) -> Result<Reply, String> {
        let mut message = self.heard.message();
        if protocol.is_one_text() {
            self.complete(protocol, &mut message, exact)?;
        } else if let Some(stop) = protocol.stop().iter().filter_map(|stop| message.content.find(stop.as_str())).min() {
            // A server that ignores `stop`.
            if exact {
                return Err(IGNORED_STOP.to_owned());
            }
            message.content.truncate(stop);
        }
        response::clean_message(&mut message, redactor);
        Ok(Reply { message, model: self.heard.model(), calls: self.calls, tokens: None })
    }

    /// Restores the stop text that the server cut off, and drops what follows the first one.
    ///
    /// # Errors
    /// If the server took the thoughts out of the text: what the model wrote is then unknown. If `exact` and text must be
    /// dropped: its tokens were sampled.
    fn complete(&self, protocol: &dyn Protocol, message: &mut Message, exact: bool) -> Result<(), String> {
        if message.reasoning.is_some() {
            let mend = "start it without a reasoning parser";
            return Err(format!(
                "the server separates `reasoning_content` from the text, which the protocol continues: {mend}"
            ));
        }
        let cut = match self.heard.stop_reason() {
            Some(reason) => {
                protocol.stop().iter().find(|stop| Some(stop.as_str()) == reason.as_str()).map(String::as_str)
            }
            None if message.finish_reason.as_deref() == Some("stop") => protocol.missing_stop(&message.content),
            None => None,
        };
        let cut = cut.filter(|cut| !message.content.ends_with(cut)).map(str::to_owned);
        message.content.extend(cut);
        // A server that ignores `stop` lets the model write results itself.
        let ends = protocol.stop().iter().filter_map(|stop| Some(message.content.find(stop.as_str())? + stop.len()));
        if let Some(end) = ends.min() {
            if exact && end < message.content.len() {
                return Err(IGNORED_STOP.to_owned());
            }
            message.content.truncate(end);
        }
        Ok(())
    }
}
