//! Requests of the OpenAI API, and shared parts of its answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use searchmill_models::inference::{Completion, Finish, Request, Sampling, TextModel};
use serde::Deserialize;
use serde_json::{Value, json};

/// Generation options of both kinds of request.
#[derive(Debug, Deserialize)]
pub(super) struct Writing {
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<i64>,
    #[serde(alias = "max_completion_tokens")]
    pub(super) max_tokens: Option<usize>,
    #[serde(default)]
    pub(super) stop: OneOrMany,
    pub(super) seed: Option<i64>,
    #[serde(default)]
    pub(super) stream: bool,
    pub(super) n: Option<u32>,
    #[serde(default)]
    pub(super) stream_options: BTreeMap<String, Value>,
}

/// Nothing, one text or several.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn all(self) -> Vec<String> {
        match self {
            Self::None => Vec::new(),
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// A served model and its name.
pub(super) struct Served {
    pub(super) model: TextModel,
    pub(super) name: String,
    /// Maximum number of answer tokens, unless the request sets it.
    pub(super) max_tokens: usize,
    /// Unix time of the start.
    pub(super) created: u64,
}

/// A request that cannot be answered, in the API's error format.
pub(super) struct Refusal {
    message: String,
}

impl Refusal {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = json!({"message": self.message, "type": "invalid_request_error", "code": null});
        (StatusCode::BAD_REQUEST, Json(json!({"error": error}))).into_response()
    }
}

impl Writing {
    /// Builds the request for the model. Without a seed, every request uses a new one.
    pub(super) fn request(
        self,
        served: &Served,
        prompt: Vec<u32>,
        log_probabilities: bool,
    ) -> Result<Request, Refusal> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(Refusal::bad("`n` other than 1 is not supported"));
        }
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.and_then(|k| usize::try_from(k).ok()).unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
        };
        if !(sampling.temperature >= 0.0 && sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return Err(Refusal::bad("`temperature` must not be negative, `top_p` must be above 0 and at most 1"));
        }
        Ok(Request {
            prompt,
            sampling,
            seed: self.seed.map_or_else(fresh_seed, |seed| seed as u64),
            max_tokens: self.max_tokens.unwrap_or(served.max_tokens),
            stops: self.stop.all(),
            stop_tokens: Arc::clone(served.model.stop_tokens()),
            log_probabilities,
            stream: self.stream,
        })
    }
}

/// A different seed for every request: the time in nanoseconds.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_nanos() as u64)
}

/// Finish reason in the API's terms.
pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

pub(super) fn usage(done: &Completion) -> Value {
    json!({
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.drawn,
        "total_tokens": done.prompt_tokens + done.drawn,
        "prompt_tokens_details": {"cached_tokens": done.reused},
    })
}
