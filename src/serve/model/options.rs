//! Options of generation, which chats and texts have in common. JSON `null` counts as absent.

use std::collections::BTreeMap;
use std::sync::Arc;

use searchmill_models::inference::{Distribution, Request, Sampling};
use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::Served;
use crate::serve::http::refusal::Refusal;

/// Generation options of both kinds of request.
#[derive(Debug, Deserialize)]
pub(crate) struct Options {
    model: Option<String>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    stop: Option<Value>,
    seed: Option<i64>,
    stream: Option<bool>,
    #[serde(rename = "stream_options")]
    streaming: Option<Streaming>,
    /// As in vLLM: the stop text that ends an answer is part of it.
    include_stop_str_in_output: Option<bool>,
    /// As in vLLM: the answer holds the tokens of the prompt and its own.
    return_token_ids: Option<bool>,
    /// Distribution of the log-probabilities, in the words of vLLM's option.
    logprobs_mode: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Streaming {
    include_usage: Option<bool>,
}

/// Maximum number of most probable tokens in an answer, as in the API.
const ALTERNATIVES: u32 = 20;

/// Log-probabilities in an answer, with this many of the most probable tokens at each place.
pub(crate) type Wanted = Option<u32>;

impl Options {
    pub(crate) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    pub(super) fn wants_usage(&self) -> bool {
        self.streaming.as_ref().is_some_and(|streaming| streaming.include_usage == Some(true))
    }

    pub(super) fn wants_token_ids(&self) -> bool {
        self.return_token_ids == Some(true)
    }

    /// Checks the model's name and the options that the server does not implement.
    pub(crate) fn check(&self, served: &Served) -> Result<(), Refusal> {
        if let Some(model) = self.model.as_ref().filter(|model| **model != served.name) {
            return Err(served.unknown(model));
        }
        // Ignored, such an option would give other answers than the client asked for.
        match self.rest.iter().find(|(name, value)| !value.is_null() && !changes_nothing(name, value)) {
            Some((name, value)) => {
                let message = format!("`{name}` is not supported (found {}); leave it out", shortened(value));
                Err(Refusal::unsupported(name, message))
            }
            None => Ok(()),
        }
    }

    /// Builds the request for the model. Without a seed, every request uses a new one. `param` is the prompt's.
    pub(crate) fn request(
        self,
        served: &Served,
        param: &str,
        prompt: Vec<u32>,
        logprobs: Wanted,
    ) -> Result<Request, Refusal> {
        let (length, context) = (prompt.len(), served.model.context());
        // At least one token of the answer must fit.
        if length >= context {
            // Clients such as LiteLLM know the error by the middle of this sentence.
            let message =
                format!("the prompt has {length} tokens, but this model's maximum context length is {context} tokens");
            return Err(Refusal::bad(message).of(param).coded("context_length_exceeded"));
        }
        let distribution = self.distribution()?;
        Ok(Request {
            prompt,
            sampling: self.sampling()?,
            max_tokens: self.max_tokens(served)?,
            stops: stops(self.stop)?,
            keep_stop: self.include_stop_str_in_output == Some(true),
            stop_tokens: Arc::clone(served.model.stop_tokens()),
            seed: self.seed.map_or_else(fresh_seed, |seed| seed as u64),
            log_probabilities: logprobs.map(|_| distribution),
            alternatives: logprobs.unwrap_or(0) as usize,
            stream: self.stream == Some(true),
        })
    }

    fn distribution(&self) -> Result<Distribution, Refusal> {
        match self.logprobs_mode.as_deref() {
            None | Some("raw_logprobs") => Ok(Distribution::Model),
            Some("processed_logprobs") => Ok(Distribution::Sampled),
            Some(_) => {
                let message = "`logprobs_mode` must be `raw_logprobs` or `processed_logprobs`";
                Err(Refusal::value("logprobs_mode", message))
            }
        }
    }

    fn sampling(&self) -> Result<Sampling, Refusal> {
        // As in vLLM: 0 and -1 mean all tokens.
        let top_k = usize::try_from(self.top_k.unwrap_or(0).max(0)).unwrap_or(0);
        let (temperature, top_p) = (self.temperature.unwrap_or(1.0), self.top_p.unwrap_or(1.0));
        // A number such as 1e39 is valid JSON, and infinite as an `f32`.
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Refusal::value("temperature", "`temperature` must be at least 0"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Refusal::value("top_p", "`top_p` must be above 0 and at most 1"));
        }
        if self.top_k.is_some_and(|count| count < -1) {
            return Err(Refusal::value("top_k", "`top_k` must be at least 1, or 0 or -1 (all tokens)"));
        }
        Ok(Sampling { temperature, top_k, top_p })
    }

    fn max_tokens(&self, served: &Served) -> Result<usize, Refusal> {
        let newer = self.max_completion_tokens.map(|count| ("max_completion_tokens", count));
        let given = newer.or(self.max_tokens.map(|count| ("max_tokens", count)));
        let Some((param, count)) = given else { return Ok(served.max_tokens) };
        let count = usize::try_from(count).ok().filter(|count| *count > 0);
        count.ok_or_else(|| Refusal::value(param, format!("`{param}` must be at least 1")))
    }
}

/// Checks the number of most probable tokens that a request asks for.
pub(super) fn few(param: &str, count: u32) -> Result<u32, Refusal> {
    if count > ALTERNATIVES {
        return Err(Refusal::value(param, format!("`{param}` must be at most {ALTERNATIVES}")));
    }
    Ok(count)
}

/// Options that the server does not implement, and that no value leaves without effect.
const UNSUPPORTED: &str = "reasoning_effort audio prediction web_search_options prompt_logprobs prompt_embeds \
    structured_outputs guided_json guided_regex guided_choice guided_grammar allowed_token_ids logits_processors \
    chat_template documents truncate_prompt_tokens typical_p no_repeat_ngram_size structural_tag";

/// Whether an option that the server does not implement has a value without effect. Names that it does not know are
/// ignored.
fn changes_nothing(name: &str, value: &Value) -> bool {
    match name {
        "frequency_penalty" | "presence_penalty" | "min_p" | "min_tokens" => value.as_f64() == Some(0.0),
        "n" | "best_of" | "repetition_penalty" | "length_penalty" => value.as_f64() == Some(1.0),
        "logit_bias" | "suffix" | "functions" | "stop_token_ids" | "bad_words" => {
            [json!({}), json!(""), json!([])].contains(value)
        }
        "echo" | "ignore_eos" | "use_beam_search" => *value == Value::Bool(false),
        "function_call" => value == "auto" || value == "none",
        "response_format" => value["type"] == "text",
        "modalities" => *value == json!(["text"]),
        "verbosity" => value == "medium",
        "skip_special_tokens" => *value == Value::Bool(true),
        _ => UNSUPPORTED.split(' ').all(|unsupported| unsupported != name),
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns the stop texts: one, or a list.
fn stops(stop: Option<Value>) -> Result<Vec<String>, Refusal> {
    let all = match stop {
        None => return Ok(Vec::new()),
        Some(Value::Array(texts)) => texts,
        Some(one) => vec![one],
    };
    let texts: Option<_> = all.iter().map(|text| text.as_str().map(str::to_owned)).collect();
    texts.ok_or_else(|| Refusal::value("stop", "`stop` must be a text or a list of texts"))
}

/// A different seed for every request: the time in nanoseconds.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_nanos() as u64)
}
