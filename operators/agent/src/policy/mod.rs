//! Policies: models and other sources of answers.

use futures::future::BoxFuture;
use searchmill_engine::operator::{Context, Prices, RowFailure, Usage};
use searchmill_schemas::{Message, Question, SampledWith};

use crate::episode::Offer;
use crate::tokens::TurnTokens;

pub mod endpoint;
pub mod evidence;
pub mod model;
mod open;
mod params;

pub use model::{Api, ModelParams};
pub use params::{EndpointParams, EvidenceMatch, EvidenceParams, EvidenceWording, PolicyParams, ServerLogprobs};

/// A model that is asked in a plain chat, without tools: messages in, one reply out.
pub trait ChatModel: Send + Sync {
    /// Prices of its calls.
    fn prices(&self) -> Prices {
        Prices::default()
    }
    /// Returns the model's message after `messages`.
    fn reply<'a>(&'a self, messages: &'a [Message], sample: RowSample<'a>) -> BoxFuture<'a, Result<Reply, RowFailure>>;
}

/// One sample of one row. It seeds the sampling: a local model's by row and number, a server's by the number.
#[derive(Clone, Copy)]
pub struct RowSample<'a> {
    /// What identifies the row.
    pub row: &'a str,
    pub number: u32,
    pub context: &'a Context,
}

/// A source of answers in the format of a protocol: a model or a teacher.
pub trait Policy: Send + Sync {
    /// Name recorded in trajectories.
    fn name(&self) -> &'static str;
    /// Prices of its calls.
    fn prices(&self) -> Prices {
        Prices::default()
    }
    /// Settings that its tokens are sampled with, if it records tokens.
    fn sampling(&self) -> Option<SampledWith> {
        None
    }
    /// Starts one sample of one question.
    fn begin<'a>(&'a self, question: &'a Question, sample: u32, context: &'a Context) -> Box<dyn Actor + 'a>;
}

/// A policy's conversation about one question.
pub trait Actor: Send {
    /// Returns the model's next message after `messages`, which only grow from call to call.
    fn act<'a>(&'a mut self, messages: &'a [Message], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>>;
}

/// A reply of the model.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The message.
    pub message: Message,
    /// Model name reported by the endpoint.
    pub model: Option<String>,
    /// Number of calls made, including failed ones.
    pub calls: u64,
    /// Its tokens, if the policy records them.
    pub tokens: Option<TurnTokens>,
}

impl Reply {
    /// Usage of the reply.
    pub fn usage(&self) -> Usage {
        usage(self.calls, self.message.prompt_tokens, self.message.completion_tokens)
    }
}

/// Usage of calls with these token counts, as the model or the endpoint reported them.
fn usage(calls: u64, prompt: Option<i64>, completion: Option<i64>) -> Usage {
    // A count below zero is a server's mistake.
    let prompt_tokens = u64::try_from(prompt.unwrap_or(0)).unwrap_or(0);
    let completion_tokens = u64::try_from(completion.unwrap_or(0)).unwrap_or(0);
    Usage { calls, prompt_tokens, completion_tokens, ..Usage::default() }
}
