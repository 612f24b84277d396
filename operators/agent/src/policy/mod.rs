//! Policies: who answers.

use futures::future::BoxFuture;
use searchmill_engine::operator::{Context, Prices, RowFailure, Usage};
use searchmill_schemas::{Message, Question};

use crate::episode::Offer;

pub mod endpoint;
pub mod evidence;
pub mod model;
mod params;

pub use model::ModelParams;
pub use params::{EndpointParams, EvidenceMatch, EvidenceParams, EvidenceWording, PolicyParams};

/// Somebody who can answer questions.
pub trait Policy: Send + Sync {
    /// The name recorded in trajectories.
    fn name(&self) -> &'static str;
    /// What its calls cost.
    fn prices(&self) -> Prices {
        Prices::default()
    }
    /// Starts on one sample of one question.
    fn begin<'a>(&'a self, question: &'a Question, sample: u32, context: &'a Context) -> Box<dyn Actor + 'a>;
}

/// A policy at work on one question.
pub trait Actor: Send {
    /// The model's next message after `messages`, which only ever grow from call to call.
    fn act<'a>(&'a mut self, messages: &'a [Message], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>>;
}

/// What the model said.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its message.
    pub message: Message,
    /// Its name, as the endpoint reports it.
    pub model: Option<String>,
    /// Calls made to get it, failed ones included.
    pub calls: u64,
}

impl Reply {
    /// What it cost.
    pub(crate) fn usage(&self) -> Usage {
        let count = |tokens: Option<i64>| tokens.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        Usage {
            calls: self.calls,
            prompt_tokens: count(self.message.prompt_tokens),
            completion_tokens: count(self.message.completion_tokens),
            ..Usage::default()
        }
    }
}
