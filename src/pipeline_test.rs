//! The model of a test: an OpenAI-compatible server on loopback that plays the script in place of all endpoints. A request
//! that the script does not answer is refused and reported.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use searchmill_engine::{Failure, Scripted};
use serde_json::{Value, json};

/// Characters of a request in a message (at most).
const SHOWN: usize = 400;

/// A request that the script does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Path of the request.
    pub(crate) path: String,
    /// The first user message, the prompt, or the body.
    pub(crate) text: String,
    /// Number of answers so far in the conversation.
    pub(crate) answers: usize,
    /// The last message, if there were answers.
    pub(crate) last: Option<String>,
}

/// A running server; it stops with its runtime.
pub(crate) struct Player {
    address: SocketAddr,
    stage: Arc<Stage>,
    _runtime: tokio::runtime::Runtime,
}

struct Stage {
    script: Vec<Scripted>,
    state: Mutex<Played>,
}

#[derive(Default)]
struct Played {
    /// Answers that were given: place in the script, and place in its list.
    given: BTreeSet<(usize, usize)>,
    refused: Vec<Refused>,
}

impl Player {
    /// Starts a server with this script.
    pub(crate) fn start(script: Vec<Scripted>) -> Result<Self, Failure> {
        // A runtime of its own: it answers while the calling thread waits for the pipeline.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stage = Arc::new(Stage { script, state: Mutex::new(Played::default()) });
        let router = Router::new().fallback(respond).with_state(Arc::clone(&stage));
        runtime.spawn(async move {
            let served = async { axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await };
            if let Err(error) = served.await {
                tracing::warn!("the scripted model failed: {error}");
            }
        });
        Ok(Self { address, stage, _runtime: runtime })
    }

    /// Returns the base URL, as endpoints are given.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Says which answers of the script were not asked for.
    pub(crate) fn unused(&self) -> Vec<String> {
        let state = self.stage.played();
        let mut unused = Vec::new();
        for (position, scripted) in self.stage.script.iter().enumerate() {
            for turn in 0..scripted.answers.len() {
                if state.given.contains(&(position, turn)) {
                    continue;
                }
                let what = match scripted.answers.len() {
                    1 => "the answer".to_owned(),
                    count => format!("answer {} of {count}", turn + 1),
                };
                unused.push(match &scripted.when {
                    Some(when) => format!("{what} to `when: {when}` was never asked for"),
                    None => format!("{what} at place {} of `model` was never asked for", position + 1),
                });
            }
        }
        unused
    }

    /// Returns the requests that were refused.
    pub(crate) fn refused(&self) -> Vec<Refused> {
        self.stage.played().refused.clone()
    }
}

impl Stage {
    fn played(&self) -> MutexGuard<'_, Played> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the message that answers a request.
    fn answer(&self, body: &Value) -> Option<Value> {
        // The turn comes from the request: conversations at the same time do not advance each other.
        let (text, turn) = (asked(body), turns(body));
        // Held until the answer is taken: an answer without `when` is given once.
        let mut state = self.played();
        let mut script = self.script.iter();
        let matching = script.position(|scripted| scripted.when.as_ref().is_some_and(|when| text.contains(when)));
        let (position, turn) = if let Some(position) = matching {
            (position, turn)
        } else {
            // Answers without `when` are given once each, in their order.
            let mut script = self.script.iter().enumerate();
            let (position, _) = script
                .find(|(position, scripted)| scripted.when.is_none() && !state.given.contains(&(*position, 0)))?;
            (position, 0)
        };
        let answer = self.script[position].answers.get(turn)?;
        state.given.insert((position, turn));
        Some(message(answer))
    }
}

async fn respond(State(stage): State<Arc<Stage>>, uri: Uri, body: Bytes) -> Response {
    let parsed = serde_json::from_slice::<Value>(&body).ok();
    let is_chat = uri.path().ends_with("/chat/completions");
    let is_text = !is_chat && uri.path().ends_with("/completions");
    if let Some(body) = &parsed
        && (is_chat || is_text)
        && let Some(answer) = stage.answer(body)
    {
        return play(&answer, is_chat, body["stream"] == true);
    }
    let (text, answers) = match &parsed {
        Some(body) => (asked(body), turns(body)),
        None => (String::from_utf8_lossy(&body).into_owned(), 0),
    };
    let text: String = text.chars().take(SHOWN).collect();
    let last = parsed.as_ref().filter(|_| answers > 0).and_then(last);
    let refused = Refused { path: uri.path().to_owned(), text: text.clone(), answers, last };
    stage.played().refused.push(refused);
    let message = format!("the script of the test has no answer to this request: {text}");
    let error = json!({"error": {"message": message, "type": "invalid_request_error"}});
    // No status that a client retries: the test ends without waiting.
    (StatusCode::BAD_REQUEST, axum::Json(error)).into_response()
}

/// Returns the text of the first user message, or the prompt.
fn asked(body: &Value) -> String {
    if let Some(prompt) = body["prompt"].as_str() {
        return prompt.to_owned();
    }
    let mut messages = body["messages"].as_array().into_iter().flatten();
    let first = messages.find(|message| message["role"] == "user");
    match first.map(|message| &message["content"]) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => body.to_string(),
    }
}

/// Returns the number of answers so far in the conversation.
fn turns(body: &Value) -> usize {
    body["messages"].as_array().into_iter().flatten().filter(|message| message["role"] == "assistant").count()
}

/// Returns the last message of the conversation, without white space around it.
fn last(body: &Value) -> Option<String> {
    let text = body["messages"].as_array()?.last()?["content"].as_str()?;
    Some(text.trim().chars().take(SHOWN).collect())
}

/// Returns an answer as a message: a text, a message, or any other value as JSON text.
fn message(answer: &Value) -> Value {
    match answer {
        Value::String(text) => json!({"role": "assistant", "content": text}),
        Value::Object(fields) if fields.contains_key("content") || fields.contains_key("tool_calls") => {
            let mut message = json!({"role": "assistant", "content": null});
            fields.iter().for_each(|(name, value)| message[name] = value.clone());
            message
        }
        other => json!({"role": "assistant", "content": other.to_string()}),
    }
}

fn play(message: &Value, is_chat: bool, streamed: bool) -> Response {
    let reason = if message["tool_calls"].is_array() { "tool_calls" } else { "stop" };
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20});
    let streamed = is_chat && streamed;
    let (object, choice) = if !is_chat {
        let choice = json!({"index": 0, "text": message["content"], "finish_reason": reason, "logprobs": null});
        ("text_completion", choice)
    } else if !streamed {
        ("chat.completion", json!({"index": 0, "message": message, "finish_reason": reason}))
    } else {
        let mut delta = message.clone();
        // Clients put the parts of a streamed call together by its number.
        for (index, call) in delta["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
            call["index"] = json!(index);
        }
        ("chat.completion.chunk", json!({"index": 0, "delta": delta, "finish_reason": reason}))
    };
    let answer = json!({"id": "scripted", "object": object, "created": 0, "model": "scripted", "choices": [choice],
        "usage": usage});
    if !streamed {
        return axum::Json(answer).into_response();
    }
    let body = format!("data: {answer}\n\ndata: [DONE]\n\n");
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}
