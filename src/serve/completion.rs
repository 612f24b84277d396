//! `/v1/completions`: continues a text.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use searchmill_models::inference::Completion;
use serde::Deserialize;
use serde_json::{Value, json};

use super::stream::{Told, stream};
use super::wire::{Refusal, Served, Writing, finish_reason, usage};

#[derive(Deserialize)]
pub(super) struct TextRequest {
    prompt: Prompt,
    logprobs: Option<u32>,
    #[serde(default)]
    echo: bool,
    #[serde(flatten)]
    writing: Writing,
}

/// A text, or its tokens.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

impl Prompt {
    fn tokens(self, served: &Served) -> Result<Vec<u32>, Refusal> {
        match self {
            Self::Tokens(tokens) => Ok(tokens),
            Self::Text(text) => served.model.tokens(&text).map_err(Refusal::bad),
            Self::Texts(mut texts) => match (texts.pop(), texts.is_empty()) {
                (Some(text), true) => served.model.tokens(&text).map_err(Refusal::bad),
                _ => Err(Refusal::bad("only one prompt per request is supported")),
            },
        }
    }
}

pub(super) async fn complete(
    State(served): State<Arc<Served>>,
    Json(request): Json<TextRequest>,
) -> Result<Response, Refusal> {
    if request.echo {
        return Err(Refusal::bad("`echo` is not supported"));
    }
    let prompt = request.prompt.tokens(&served)?;
    let (streams, wants_usage) = (request.writing.stream, request.writing.stream_options.contains_key("include_usage"));
    let request = request.writing.request(&served, prompt, request.logprobs.is_some())?;
    if streams {
        let name = served.name.clone();
        let part = move |told: &Told<'_>| match told {
            Told::Text(text) => vec![piece(&name, text, None)],
            Told::End(done) => {
                let mut last = piece(&name, "", Some(finish_reason(done.finish)));
                last["usage"] = if wants_usage { usage(done) } else { Value::Null };
                vec![last]
            }
        };
        return stream(&served, request, part);
    }
    let done = served.model.complete(request).await.map_err(Refusal::bad)?;
    Ok(Json(whole(&served, &done)).into_response())
}

fn piece(name: &str, text: &str, reason: Option<&str>) -> Value {
    json!({"object": "text_completion", "model": name,
        "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}]})
}

fn whole(served: &Served, done: &Completion) -> Value {
    let mut answer = piece(&served.name, &done.text, Some(finish_reason(done.finish)));
    if !done.log_probabilities.is_empty() {
        let tokens: Vec<String> = done.tokens.iter().map(|token| served.model.token_text(*token)).collect();
        answer["choices"][0]["logprobs"] = json!({"tokens": tokens, "token_logprobs": done.log_probabilities});
    }
    answer["id"] = json!("cmpl-0");
    answer["created"] = json!(served.created);
    answer["usage"] = usage(done);
    answer
}
