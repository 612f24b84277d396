//! An OpenAI-compatible chat-completions server on a real socket, scripted by question: what it says at the first
//! request about a question, at the second, and so on (the last step repeats). It can also fail in every way that real
//! servers do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// What the server does at one request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A message, with usage and finish reason; streamed when the request asks for it.
    Say(Value),
    /// The same without `usage`.
    SayUncounted(Value),
    /// An error status with headers and a body.
    Status(u16, Vec<(&'static str, String)>, String),
    /// Status 200 with this body.
    Body(String),
    /// Half of a message, then the connection breaks.
    BreakOff(Value),
    /// Half of a streamed message, then a clean end without `[DONE]`.
    EndEarly(Value),
    /// First a wait.
    After(Duration, Box<Step>),
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its JSON body.
    pub(crate) body: Value,
    /// Its `Authorization` header.
    pub(crate) authorization: Option<String>,
}

/// What the server does, by the text of the first user message.
pub(crate) type Script = BTreeMap<String, Vec<Step>>;

/// A running server; it stops when dropped.
pub(crate) struct OpenAiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    script: Script,
    /// Which step comes is decided by what the model has said so far, not by how often it was asked: the same request
    /// always gets the same answer.
    by_turn: bool,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    asked: BTreeMap<String, usize>,
    requests: Vec<Request>,
    /// When they came.
    arrivals: Vec<Instant>,
    open: usize,
    most_open: usize,
}

/// A message that asks for these searches at once, by the tool `search`.
pub(crate) fn search(queries: &[&str]) -> Step {
    let calls = queries.iter().enumerate().map(|(i, query)| {
        let arguments = json!({"query": query}).to_string();
        json!({"id": format!("call_{i}"), "type": "function", "function": {"name": "search", "arguments": arguments}})
    });
    Step::Say(json!({"role": "assistant", "content": null, "tool_calls": calls.collect::<Vec<_>>()}))
}

/// A message that calls a tool with these arguments, whatever they are.
pub(crate) fn call(name: &str, arguments: &str) -> Step {
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"id": "call_x", "type": "function", "function": function});
    Step::Say(json!({"role": "assistant", "content": "One moment.", "tool_calls": [call]}))
}

/// A final message.
pub(crate) fn answer(text: &str) -> Step {
    Step::Say(message(&format!("The passages say so. <answer>{text}</answer>")))
}

/// A plain message.
pub(crate) fn message(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// An error status.
pub(crate) fn status(code: u16) -> Step {
    Step::Status(code, Vec::new(), json!({"error": {"message": format!("scripted {code}")}}).to_string())
}

/// An error status with a `Retry-After` header.
pub(crate) fn status_retry_after(code: u16, retry_after: &str) -> Step {
    Step::Status(code, vec![("retry-after", retry_after.to_owned())], String::new())
}

impl OpenAiServer {
    /// Starts a server on a free port of 127.0.0.1, with a thread and runtime of its own.
    pub(crate) fn start(script: Script) -> Self {
        Self::start_with(script, false)
    }

    /// The same, but the step is the number of turns that the model has had: the same request gets the same answer.
    pub(crate) fn start_by_turn(script: Script) -> Self {
        Self::start_with(script, true)
    }

    /// Another server that says the same, and was not asked yet.
    pub(crate) fn again(&self) -> Self {
        Self::start_with(self.shared.script.clone(), self.shared.by_turn)
    }

    fn start_with(script: Script, by_turn: bool) -> Self {
        let shared = Arc::new(Shared { script, by_turn, log: Mutex::default() });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let app = Router::new().route("/v1/chat/completions", post(respond)).with_state(Arc::clone(&shared));
        let thread = std::thread::spawn(move || serve(listener, app, stopped));
        Self { address, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// What goes into `base_url`.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// All requests so far.
    pub(crate) fn count(&self) -> usize {
        self.shared.log.lock().expect("the log").arrivals.len()
    }

    /// Requests that are not answered yet, and the most that ever were at once.
    pub(crate) fn open(&self) -> (usize, usize) {
        let log = self.shared.log.lock().expect("the log");
        (log.open, log.most_open)
    }

    /// When requests came, in their order.
    pub(crate) fn arrivals(&self) -> Vec<Instant> {
        self.shared.log.lock().expect("the log").arrivals.clone()
    }

    /// Requests about that question, in the order of their arrival.
    pub(crate) fn requests(&self, question: &str) -> Vec<Request> {
        let log = self.shared.log.lock().expect("the log");
        log.requests.iter().filter(|request| question_of(&request.body) == question).cloned().collect()
    }
}

impl Drop for OpenAiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ended well");
        }
    }
}

fn serve(listener: std::net::TcpListener, app: Router, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        tokio::select! {
            served = async { axum::serve(listener, app).await } => served.expect("serving"),
            _ = stopped => {}
        }
    });
}

async fn respond(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).expect("requests are JSON");
    let authorization = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let streamed = body["stream"] == true;
    let mut step = shared.next_step(&body, authorization);
    let _open = Open::new(&shared);
    while let Step::After(wait, then) = step {
        tokio::time::sleep(wait).await;
        step = *then;
    }
    perform(step, streamed)
}

/// A request that is not answered yet, also when its client goes away.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        let mut log = shared.log.lock().expect("the log");
        log.open += 1;
        log.most_open = log.most_open.max(log.open);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.log.lock().expect("the log").open -= 1;
    }
}

impl Shared {
    fn next_step(&self, body: &Value, authorization: Option<String>) -> Step {
        let question = question_of(body);
        let mut log = self.log.lock().expect("the log");
        log.arrivals.push(Instant::now());
        log.requests.push(Request { body: body.clone(), authorization });
        let asked = log.asked.entry(question.clone()).or_default();
        *asked += 1;
        let place = if self.by_turn { turns_of(body) } else { *asked - 1 };
        match self.script.get(&question) {
            Some(steps) => steps[place.min(steps.len() - 1)].clone(),
            None => status(404),
        }
    }
}

fn turns_of(body: &Value) -> usize {
    let messages = body["messages"].as_array();
    messages.into_iter().flatten().filter(|message| message["role"] == "assistant").count()
}

fn question_of(body: &Value) -> String {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let first = messages.iter().find(|message| message["role"] == "user");
    first.and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
}

fn perform(step: Step, streamed: bool) -> Response {
    match step {
        Step::Say(message) if streamed => event_stream(events(&message).concat() + "data: [DONE]\n\n"),
        Step::Say(message) => json_body(completion(&message).to_string()),
        Step::SayUncounted(message) => {
            let mut completion = completion(&message);
            completion.as_object_mut().expect("an object").remove("usage");
            json_body(completion.to_string())
        }
        Step::Status(code, headers, body) => {
            let mut response = (StatusCode::from_u16(code).expect("a status"), body).into_response();
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().expect("a header value"));
            }
            response
        }
        Step::Body(body) => json_body(body),
        Step::BreakOff(message) => broken(&message, streamed),
        Step::EndEarly(message) => event_stream(events(&message)[..2].concat()),
        Step::After(_, then) => perform(*then, streamed),
    }
}

fn completion(message: &Value) -> Value {
    let reason = if message["tool_calls"].is_array() { "tool_calls" } else { "stop" };
    json!({"id": "chatcmpl-1", "object": "chat.completion", "model": "scripted-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}})
}

/// The message in pieces: role, content by halves, whole tool calls, finish reason, usage.
fn events(message: &Value) -> Vec<String> {
    let event = |value: Value| format!("data: {value}\n\n");
    let piece = |delta: Value, reason: Value| {
        event(json!({"model": "scripted-2026", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))
    };
    let content = message["content"].as_str().unwrap_or_default();
    let middle = content.char_indices().nth(content.chars().count() / 2).map_or(0, |(place, _)| place);
    let mut events = vec![piece(json!({"role": "assistant"}), Value::Null)];
    for half in [&content[..middle], &content[middle..]] {
        events.push(piece(json!({"content": half}), Value::Null));
    }
    for (index, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let mut call = call.clone();
        call["index"] = json!(index);
        events.push(piece(json!({"tool_calls": [call]}), Value::Null));
    }
    events.push(piece(json!({}), completion(message)["choices"][0]["finish_reason"].clone()));
    events.push(event(json!({"choices": [], "usage": completion(message)["usage"]})));
    events
}

fn json_body(body: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn event_stream(body: String) -> Response {
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Half of the body, then an error, which makes the server cut the connection.
fn broken(message: &Value, streamed: bool) -> Response {
    let whole = if streamed { events(message).concat() } else { completion(message).to_string() };
    let half = Bytes::from(whole[..whole.len() / 2].to_owned());
    let pieces = stream::iter([Ok(half), Err(std::io::Error::other("scripted break"))]);
    Response::new(Body::from_stream(pieces))
}
