//! Policy `endpoint`: a model behind any OpenAI-compatible chat-completions server.

mod exchange;
mod lenient_json;
mod models;
mod remedy;
mod request;
mod response;
mod stored_answer;
mod stream;
mod tokens;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{
    Attempt, Call, CallFailure, Context, Counts, FailureKind, Observed, OperatorError, Prices, Redactor, RowFailure,
    Usage,
};
use searchmill_schemas::{Message, Question, SampledWith};

use self::exchange::{Exchange, bad_response, redacted};
use self::request::{Asked, Conversation, RequestFrame};
use self::stored_answer::{StoredAnswer, Unread};
use super::{Actor, ChatModel, EndpointParams, Policy, Reply, RowSample};
use crate::episode::Offer;
use crate::protocol::{ChatFormat, Seen};
use crate::tokens::{Reported, RewrittenHistory, TurnTokens};
use crate::words::one_line;

/// A model on a server.
pub struct Endpoint {
    frame: RequestFrame,
    exchange: Exchange,
    format: Arc<dyn ChatFormat>,
    /// Whether tokens are recorded: settings, and what happens to rewritten history.
    record: Option<(SampledWith, RewrittenHistory)>,
}

impl Endpoint {
    /// Resolves the secret and prepares the constant part of every request.
    pub fn open(
        params: &EndpointParams,
        format: Arc<dyn ChatFormat>,
        record: Option<RewrittenHistory>,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let frame = RequestFrame::new(params, format.as_ref(), record.is_some());
        let record = record.map(|record| (params.sampling(), record));
        Ok(Self { frame, exchange: Exchange::open(params, context)?, format, record })
    }

    /// Prepares the request of a chat that ends with these messages.
    fn asking<'a>(&'a self, messages: &[Message], sample: RowSample<'a>) -> Asking<'a> {
        let asked = Conversation::new(&self.frame, sample.number).next(messages, Offer::Nothing);
        Asking { endpoint: self, asked, context: sample.context, hopeless: AtomicBool::new(false) }
    }

    /// Reads a stored answer. Its failures may still hold secrets.
    fn read(&self, answer: &[u8], redactor: &Redactor) -> Result<Answer, CallFailure> {
        let stored = StoredAnswer::read(answer, self.exchange.stream).map_err(|Unread { message, detail }| {
            let ending = if detail.trim().is_empty() { String::new() } else { format!(": {}", one_line(&detail)) };
            bad_response(format!("{message}{ending}"), detail.as_bytes())
        })?;
        let mut tokens = None;
        if self.record.is_some() {
            let whole = stored.heard.tokens.clone().unwrap_or_default().whole();
            tokens = Some(whole.map_err(|message| without_tokens(message, stored.heard.withheld))?);
        }
        match stored.reply(self.format.as_ref(), redactor, tokens.is_some()) {
            Ok(reply) => Ok(Answer { reply, tokens }),
            // A server that ignores `stop` or takes thoughts out would do so again: asking once more only costs.
            Err(message) => Err(CallFailure::new(FailureKind::Refused, message, None)),
        }
    }
}

/// A model beside the rollouts, for tools: each request is an observation of the service at a place of the declaration,
/// known by its content alone.
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

impl ChatModel for Endpoint {
    fn prices(&self) -> Prices {
        self.exchange.prices.clone()
    }

    fn reply<'a>(&'a self, messages: &'a [Message], sample: RowSample<'a>) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let asking = self.asking(messages, sample);
        async move { Ok(sample.context.call(&asking).await?.reply) }.boxed()
    }
}

impl Policy for Endpoint {
    fn name(&self) -> &'static str {
        "endpoint"
    }

    fn prices(&self) -> Prices {
        ChatModel::prices(self)
    }

    fn sampling(&self) -> Option<SampledWith> {
        let (sampling, _) = self.record.as_ref()?;
        Some(sampling.clone())
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
        async move {
            let endpoint = self.endpoint;
            let (asked, is_aside) = {
                let seen = Seen::of(messages, endpoint.format.is_in_turns());
                // An aside is a conversation of its own: neither its messages nor its tokens enter the one that grows.
                let asked = if seen.is_aside {
                    Conversation::new(&endpoint.frame, self.sample).next(&seen.messages, offer)
                } else {
                    self.conversation.next(&seen.messages, offer)
                };
                // The messages are not held while the server is waited for: they may be a copy.
                (asked, seen.is_aside)
            };
            let asking = Asking { endpoint, asked, context: self.context, hopeless: AtomicBool::new(false) };
            let Answer { reply, tokens } = self.context.call(&asking).await?;
            let (Some((prompt, turn)), Some((_, record))) = (tokens, &endpoint.record) else {
                return Ok(reply);
            };
            let mut aside = Reported::default();
            let reported = if is_aside { &mut aside } else { &mut self.reported };
            match reported.new_in(prompt, turn, messages.len(), *record) {
                Ok(turn) => Ok(Reply { tokens: Some(turn), ..reply }),
                // The answer was paid for, although the row fails.
                Err(message) => Err(RowFailure { usage: reply.usage(), ..RowFailure::new(FailureKind::Data, message) }),
            }
        }
        .boxed()
    }
}

/// One request to the server.
struct Asking<'a> {
    endpoint: &'a Endpoint,
    asked: Asked,
    context: &'a Context,
    /// Whether an attempt failed for a reason that no model can mend.
    hopeless: AtomicBool,
}

impl Asking<'_> {
    async fn attempt(&self, attempt: &Attempt) -> Result<(Vec<u8>, Usage), CallFailure> {
        let redactor = self.context.redactor();
        let sent = self.endpoint.exchange.send(self.asked.body.clone(), self.context, attempt).await;
        let raw = sent.map_err(|failure| redacted(failure, redactor))?;
        let written = stored_answer::write(raw, u64::from(attempt.number()), redactor);
        let (stored, heard) = written.map_err(|error| CallFailure::new(FailureKind::BadResponse, error, None))?;
        let usage = match heard {
            Ok(heard) => heard.usage(),
            // An answer that cannot be read was still a call.
            Err(_) => Usage { calls: 1, ..Usage::default() },
        };
        Ok((stored, usage))
    }
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
            let sent = self.attempt(attempt).await;
            if let Err(failure) = &sent {
                self.hopeless.fetch_or(failure.same_for_all, Ordering::Relaxed);
            }
            sent
        }
        .boxed()
    }

    fn read(&self, answer: &[u8]) -> Result<Answer, CallFailure> {
        let redactor = self.context.redactor();
        self.endpoint.read(answer, redactor).map_err(|failure| redacted(failure, redactor))
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

impl StoredAnswer {
    /// Returns the reply; `exact`: its text must be that of its tokens.
    fn reply(&self, format: &dyn ChatFormat, redactor: &Redactor, exact: bool) -> Result<Reply, String> {
        let mut message = self.heard.message();
        if format.is_one_text() {
            self.complete(format, &mut message, exact)?;
        } else if let Some(stop) = format.stop().iter().filter_map(|stop| message.content.find(stop.as_str())).min() {
            // A server that ignores `stop`.
            if exact {
                return Err(IGNORED_STOP.to_owned());
            }
            message.content.truncate(stop);
        }
        response::clean_message(&mut message, redactor);
        Ok(Reply { message, model: self.heard.model.clone(), calls: self.calls, tokens: None })
    }

    /// Restores the stop text that the server cut off, and drops what follows the first one.
    ///
    /// # Errors
    /// If the server took the thoughts out of the text: what the model wrote is then unknown. If `exact` and text must be
    /// dropped: its tokens were sampled.
    fn complete(&self, format: &dyn ChatFormat, message: &mut Message, exact: bool) -> Result<(), String> {
        if message.reasoning.is_some() {
            let mend = "start it without a reasoning parser";
            return Err(format!(
                "the server separates `reasoning_content` from the text, which the protocol continues: {mend}"
            ));
        }
        let cut = match &self.heard.stop_reason {
            Some(reason) => format.stop().iter().map(String::as_str).find(|stop| Some(*stop) == reason.as_str()),
            // The server reports no stop text: only an answer that ended by itself can lack one.
            None if message.finish_reason.as_deref() == Some("stop") => format.missing_stop(&message.content),
            None => None,
        };
        // Some servers leave it in (`include_stop_str_in_output`).
        if let Some(cut) = cut.filter(|cut| !message.content.ends_with(cut)).map(str::to_owned) {
            message.content.push_str(&cut);
        }
        // A server that ignores `stop` lets the model write results itself.
        let ends = format.stop().iter().filter_map(|stop| Some(message.content.find(stop.as_str())? + stop.len()));
        if let Some(end) = ends.min() {
            if exact && end < message.content.len() {
                return Err(IGNORED_STOP.to_owned());
            }
            message.content.truncate(end);
        }
        Ok(())
    }
}
