//! `/v1/completions`: continues a text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use searchmill_models::inference::Completion;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Choice, answer};
use super::body::Body;
use super::options::few;
use super::wire::{Answer, Details, Served, finish_reason};
use crate::serve::http::refusal::Refusal;

#[derive(Deserialize)]
pub(super) struct TextRequest {
    prompt: Value,
    /// Number of most probable tokens at each place (0: log-probabilities of the sampled tokens alone).
    logprobs: Option<u32>,
}

/// Returns the tokens of a prompt: a text or its tokens, or a list with one of them.
fn tokens(prompt: Value, served: &Served) -> Result<Vec<u32>, Refusal> {
    let unfit = || Refusal::value("prompt", "`prompt` must be a text or a list of token ids");
    match prompt {
        Value::String(text) => served.model.tokens(&text).map_err(Refusal::bad),
        Value::Array(mut items) => match items.first() {
            Some(Value::String(_) | Value::Array(_)) if items.len() > 1 => {
                Err(Refusal::unsupported("prompt", "only one prompt per request is supported"))
            }
            Some(Value::String(_) | Value::Array(_)) => tokens(items.remove(0), served),
            _ => {
                let token = |item: &Value| item.as_u64().and_then(|token| u32::try_from(token).ok());
                items.iter().map(token).collect::<Option<_>>().ok_or_else(unfit)
            }
        },
        _ => Err(unfit()),
    }
}

pub(crate) async fn complete(
    State(served): State<Arc<Served>>,
    Body { options, own }: Body<TextRequest>,
) -> Result<Response, Refusal> {
    options.check(&served)?;
    let (prompt, logprobs) =
        (tokens(own.prompt, &served)?, own.logprobs.map(|count| few("logprobs", count)).transpose()?);
    let details = Details { logprobs: logprobs.is_some(), token_ids: options.wants_token_ids() };
    let prompt_ids = details.token_ids.then(|| prompt.clone());
    let framed = Answer {
        id: format!("cmpl-{}", served.fresh()),
        object: "text_completion",
        created: searchmill_engine::unix_time() as u64,
        model: served.name.clone(),
        prompt: prompt_ids.clone(),
        with_usage: options.wants_usage(),
    };
    let request = options.request(&served, "prompt", prompt, logprobs)?;
    answer(&served, request, framed, Text { served: Arc::clone(&served), prompt: prompt_ids, details }).await
}

/// The continuation of a text.
struct Text {
    served: Arc<Served>,
    /// Tokens of the prompt: vLLM has them in the choice.
    prompt: Option<Vec<u32>>,
    details: Details,
}

impl Text {
    fn ended(&self, part: Value, done: &Completion) -> Value {
        self.details.end(part, finish_reason(done.finish), done, self.logprobs(done))
    }

    fn logprobs(&self, done: &Completion) -> Value {
        let text = |token: &u32| self.served.model.token_text(*token);
        let (tokens, numbers): (Vec<String>, Vec<f32>) =
            self.details.drawn(done).map(|(token, number)| (text(&token), number)).unzip();
        // As in the API, the sampled token is among the others.
        let top = done.alternatives.iter().zip(tokens.iter().zip(&numbers)).map(|(others, (token, number))| {
            let mut all: serde_json::Map<String, Value> =
                others.iter().map(|(token, number)| (text(token), json!(number))).collect();
            all.insert(token.clone(), json!(number));
            Value::Object(all)
        });
        let top: Vec<Value> = top.collect();
        let top = (!top.is_empty()).then_some(top);
        json!({"tokens": tokens, "token_logprobs": numbers, "top_logprobs": top})
    }
}

impl Choice for Text {
    fn whole(&self, done: &Completion) -> Value {
        let mut choice = self.ended(part(&done.text), done);
        if let Some(prompt) = &self.prompt {
            choice["prompt_token_ids"] = json!(prompt);
        }
        choice
    }

    fn start(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn more(&mut self, text: &str) -> Vec<Value> {
        vec![part(text)]
    }

    fn end(&mut self, done: &Completion) -> Vec<Value> {
        vec![self.ended(part(""), done)]
    }
}

fn part(text: &str) -> Value {
    json!({"index": 0, "text": text, "logprobs": null, "finish_reason": null})
}
