//! `/v1/chat/completions`: continues a conversation, optionally with tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use searchmill_models::inference::{Completion, Finish, Message, Said, parse_calls};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::stream::{Told, stream};
use super::wire::{Refusal, Served, Writing, finish_reason, usage};

#[derive(Deserialize)]
pub(super) struct ChatRequest {
    messages: Vec<Given>,
    /// Raw JSON: the order of its keys is part of the prompt.
    tools: Option<Box<RawValue>>,
    #[serde(default)]
    logprobs: bool,
    #[serde(default)]
    chat_template_kwargs: BTreeMap<String, Value>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    #[serde(default)]
    stop: super::wire::OneOrMany,
    seed: Option<i64>,
    #[serde(default)]
    stream: bool,
    n: Option<u32>,
    #[serde(default)]
    stream_options: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Given {
    role: String,
    #[serde(default)]
    content: Value,
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<GivenCall>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct GivenCall {
    #[serde(default)]
    id: String,
    function: GivenFunction,
}

#[derive(Deserialize)]
struct GivenFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

impl Given {
    fn message(self) -> Result<Message, Refusal> {
        let content = match self.content {
            Value::Null => String::new(),
            Value::String(text) => text,
            Value::Array(parts) => {
                let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
                texts.ok_or_else(|| Refusal::bad("only text content is supported"))?.concat()
            }
            _ => return Err(Refusal::bad("a message's content must be text")),
        };
        let calls = self.tool_calls.into_iter().map(|call| Said {
            id: call.id,
            name: call.function.name,
            arguments: match call.function.arguments {
                Value::String(text) => text,
                other => other.to_string(),
            },
        });
        Ok(Message {
            role: self.role,
            content,
            reasoning: self.reasoning_content,
            calls: calls.collect(),
            call_id: self.tool_call_id,
        })
    }
}

impl ChatRequest {
    fn writing(self) -> Writing {
        Writing {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            stop: self.stop,
            seed: self.seed,
            stream: self.stream,
            n: self.n,
            stream_options: self.stream_options,
        }
    }
}

pub(super) async fn complete(
    State(served): State<Arc<Served>>,
    Json(mut request): Json<ChatRequest>,
) -> Result<Response, Refusal> {
    let given = std::mem::take(&mut request.messages).into_iter();
    let messages = given.map(Given::message).collect::<Result<Vec<_>, _>>()?;
    if messages.is_empty() {
        return Err(Refusal::bad("there are no messages"));
    }
    let tools = request.tools.as_ref().map_or("[]", |tools| tools.get()).to_owned();
    let prompt = served.model.chat_tokens(&messages, &tools, &request.chat_template_kwargs).map_err(Refusal::bad)?;
    let with_tools = !matches!(tools.as_str(), "[]" | "null");
    let (streams, logprobs) = (request.stream, request.logprobs);
    let wants_usage = request.stream_options.contains_key("include_usage");
    let request = request.writing().request(&served, prompt, logprobs)?;
    if streams {
        return stream(&served, request, Speech::new(&served, with_tools, wants_usage).teller());
    }
    let done = served.model.complete(request).await.map_err(Refusal::bad)?;
    Ok(Json(whole(&served, &done, with_tools)).into_response())
}

fn calls(done: &Completion) -> Vec<Value> {
    let calls = parse_calls(&done.text, "").calls.into_iter().enumerate();
    let call = |(number, (name, arguments))| {
        json!({"index": number, "id": format!("call_{number}"), "type": "function",
            "function": {"name": name, "arguments": arguments}})
    };
    calls.map(call).collect()
}

fn reason(done: &Completion, calls: &[Value]) -> &'static str {
    if done.finish == Finish::Stop && !calls.is_empty() { "tool_calls" } else { finish_reason(done.finish) }
}

fn whole(served: &Served, done: &Completion, with_tools: bool) -> Value {
    let speech = parse_calls(&done.text, "");
    let calls = if with_tools { calls(done) } else { Vec::new() };
    let mut message = json!({"role": "assistant", "content": done.text});
    if with_tools || speech.reasoning.is_some() {
        message["content"] = json!(if with_tools { speech.content } else { speech.said });
        message["reasoning_content"] = json!(speech.reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    let logprobs = (!done.log_probabilities.is_empty()).then(|| {
        let tokens = done.tokens.iter().zip(&done.log_probabilities);
        let content = tokens.map(|(token, logprob)| {
            json!({"token": served.model.token_text(*token), "logprob": logprob, "bytes": null, "top_logprobs": []})
        });
        json!({"content": content.collect::<Vec<_>>()})
    });
    json!({"id": "chatcmpl-0", "object": "chat.completion", "created": served.created, "model": served.name,
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason(done, &calls)}],
        "usage": usage(done)})
}

/// A streamed answer: text as it arrives, tool calls complete at the end.
struct Speech {
    name: String,
    with_tools: bool,
    wants_usage: bool,
    text: String,
    told: usize,
}

const CALL: &str = "<tool_call>";

impl Speech {
    fn new(served: &Served, with_tools: bool, wants_usage: bool) -> Self {
        Self { name: served.name.clone(), with_tools, wants_usage, text: String::new(), told: 0 }
    }

    fn teller(mut self) -> impl FnMut(&Told<'_>) -> Vec<Value> + Send + 'static {
        move |told| match told {
            Told::Text(text) => {
                self.text.push_str(text);
                self.content(self.settled())
            }
            Told::End(done) => self.end(done),
        }
    }

    /// Length of the text before the first call, or before a possible start of one.
    fn settled(&self) -> usize {
        if !self.with_tools {
            return self.text.len();
        }
        if let Some(call) = self.text.find(CALL) {
            return call;
        }
        let held = (1..CALL.len()).rev().find(|count| self.text.ends_with(&CALL[..*count]));
        self.text.len() - held.unwrap_or(0)
    }

    fn content(&mut self, end: usize) -> Vec<Value> {
        let new = self.text.get(self.told..end).unwrap_or_default().to_owned();
        self.told = self.told.max(end);
        if new.is_empty() { Vec::new() } else { vec![self.piece(json!({"content": new}), None)] }
    }

    fn piece(&self, delta: Value, reason: Option<&str>) -> Value {
        json!({"id": "chatcmpl-0", "object": "chat.completion.chunk", "model": self.name,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    }

    fn end(&mut self, done: &Completion) -> Vec<Value> {
        let calls = if self.with_tools { calls(done) } else { Vec::new() };
        let mut pieces = if calls.is_empty() { self.content(self.text.len()) } else { Vec::new() };
        if !calls.is_empty() {
            pieces.push(self.piece(json!({"tool_calls": calls}), None));
        }
        let mut last = self.piece(json!({}), Some(reason(done, &calls)));
        if self.wants_usage {
            last["usage"] = usage(done);
        }
        pieces.push(last);
        pieces
    }
}
