//! `/v1/completions`: continues a text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use searchmill_models::inference::Completion;
use serde::Deserialize;
use serde_json::{Map, Value, json};

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
    match prompt {
        Value::String(text) => return served.model.tokens(&text).map_err(Refusal::bad),
        Value::Array(mut items) => match items.first() {
            Some(Value::String(_) | Value::Array(_)) if items.len() > 1 => {
                return Err(Refusal::unsupported("prompt", "only one prompt per request is supported"));
            }
            Some(Value::String(_) | Value::Array(_)) => return tokens(items.remove(0), served),
            _ => {
                if let Some(tokens) = items.iter().map(token).collect() {
                    return Ok(tokens);
                }
            }
        },
        _ => {}
    }
    Err(Refusal::value("prompt", "`prompt` must be a text or a list of token ids"))
}

fn token(item: &Value) -> Option<u32> {
    u32::try_from(item.as_u64()?).ok()
}

pub(crate) async fn complete(
    State(served): State<Arc<Served>>,
    Body { options, own }: Body<TextRequest>,
) -> Result<Response, Refusal> {
    options.check(&served)?;
    let prompt = tokens(own.prompt, &served)?;
    let logprobs = own.logprobs.map(|count| few("logprobs", count)).transpose()?;
    let details = Details { logprobs: logprobs.is_some(), token_ids: options.wants_token_ids() };
    let prompt_ids = details.token_ids.then(|| prompt.clone());
    let id = format!("cmpl-{}", served.fresh());
    let framed = Answer::new(&served, id, "text_completion", prompt_ids.clone(), options.wants_usage());
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
        let model = &self.served.model;
        let (mut tokens, mut numbers, mut top) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (token, number)) in self.details.drawn(done).enumerate() {
            let text = model.token_text(token);
            if let Some(others) = done.alternatives.get(index) {
                let mut all = Map::new();
                for (other, number) in others {
                    all.insert(model.token_text(*other), json!(number));
                }
                // As in the API, the sampled token is among the others.
                all.insert(text.clone(), json!(number));
                top.push(Value::Object(all));
            }
            tokens.push(text);
            numbers.push(number);
        }
        let top = if top.is_empty() { None } else { Some(top) };
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
