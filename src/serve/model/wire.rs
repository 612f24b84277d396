//! Answers of the OpenAI API: what is the same for chats and texts.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use searchmill_models::inference::{Completion, Finish, TextModel};
use serde_json::{Value, json};

use crate::serve::http::refusal::Refusal;

/// A served model and its name.
pub(crate) struct Served {
    pub(crate) model: TextModel,
    pub(crate) name: String,
    /// Maximum number of answer tokens, unless the request sets it.
    pub(crate) max_tokens: usize,
    /// Unix time of the start.
    pub(crate) created: u64,
    /// Number of answers so far.
    pub(crate) answers: AtomicU64,
}

impl Served {
    /// Returns the error of a model that is not served.
    pub(crate) fn unknown(&self, model: &str) -> Refusal {
        let message = format!("the model `{model}` does not exist; this server has `{}`", self.name);
        Refusal::new(StatusCode::NOT_FOUND, message).of("model").coded("model_not_found")
    }

    /// Returns a text that no other answer of this server has in its id.
    pub(super) fn fresh(&self) -> String {
        // The time of the start tells these ids from those before a restart.
        format!("{:08x}{:08x}", self.created, self.answers.fetch_add(1, Ordering::Relaxed))
    }
}

/// An answer without its choices.
pub(super) struct Answer {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Tokens of the prompt, if the answer tells them.
    pub(crate) prompt: Option<Vec<u32>>,
    /// Whether a streamed answer ends with its usage.
    pub(super) with_usage: bool,
}

impl Answer {
    pub(super) fn new(
        served: &Served,
        id: String,
        object: &'static str,
        prompt: Option<Vec<u32>>,
        with_usage: bool,
    ) -> Self {
        let (created, model) = (searchmill_engine::unix_time() as u64, served.name.clone());
        Self { id, object, created, model, prompt, with_usage }
    }

    fn body(&self, choices: Value) -> Value {
        json!({"id": self.id, "object": self.object, "created": self.created, "model": self.model, "choices": choices})
    }

    fn with_prompt(&self, mut body: Value) -> Value {
        if let Some(prompt) = &self.prompt {
            body["prompt_token_ids"] = json!(prompt);
        }
        body
    }

    /// Returns the whole answer.
    pub(crate) fn whole(&self, choice: Value, done: &Completion) -> Value {
        let mut body = self.with_prompt(self.body(json!([choice])));
        body["usage"] = usage(done);
        body
    }

    /// Returns a chunk of a streamed answer; the first one holds the prompt's tokens.
    pub(crate) fn chunk(&self, choice: Value, is_first: bool) -> Value {
        let mut body = self.body(json!([choice]));
        // As in the API: null in all chunks but a last one, which has the usage and no choices.
        if self.with_usage {
            body["usage"] = Value::Null;
        }
        if is_first { self.with_prompt(body) } else { body }
    }

    /// Returns the last chunk of a streamed answer.
    pub(crate) fn last(&self, done: &Completion) -> Option<Value> {
        let mut body = self.body(json!([]));
        body["usage"] = usage(done);
        self.with_usage.then_some(body)
    }
}

/// Parts of an answer that requests ask for.
#[derive(Clone, Copy)]
pub(super) struct Details {
    pub(crate) logprobs: bool,
    pub(super) token_ids: bool,
}

impl Details {
    /// Adds to a choice why it ended, its tokens, and their log-probabilities.
    pub(crate) fn end(self, mut choice: Value, reason: &str, done: &Completion, logprobs: Value) -> Value {
        choice["finish_reason"] = json!(reason);
        choice["stop_reason"] = json!(done.stop_text);
        if self.logprobs {
            choice["logprobs"] = logprobs;
        }
        if self.token_ids {
            let all: Vec<u32> = self.drawn(done).map(|(token, _)| token).collect();
            choice["token_ids"] = json!(all);
        }
        choice
    }

    /// Returns the sampled tokens with their log-probabilities; with the stop token only if token ids are asked for, as
    /// its text is not part of the answer.
    pub(crate) fn drawn(self, done: &Completion) -> impl Iterator<Item = (u32, f32)> {
        let numbers = done.log_probabilities.iter().copied().chain(std::iter::repeat(0.0));
        let stop = done.stop_token.zip(Some(done.stop_log_probability.unwrap_or(0.0))).filter(|_| self.token_ids);
        done.tokens.iter().copied().zip(numbers).chain(stop)
    }
}

/// Finish reason in the API's terms.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn usage(done: &Completion) -> Value {
    json!({
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.drawn,
        "total_tokens": done.prompt_tokens + done.drawn,
        "prompt_tokens_details": {"cached_tokens": done.reused},
    })
}
