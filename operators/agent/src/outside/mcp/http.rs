//! MCP over streamable HTTP: every message is a POST; the response is JSON or a stream of events.

use reqwest::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use searchmill_engine::operator::{Attempt, CallFailure};
use serde_json::Value;

use super::super::service::bad;
use super::super::wire::{Answered, Wire, has_type, shortened};
use super::message::{Fault, Session, events, response};

/// Media type of a stream of events.
const EVENTS: &str = "text/event-stream";
/// Header with the session's id.
const SESSION: &str = "mcp-session-id";

/// An MCP server behind a URL.
pub(super) struct HttpServer {
    pub(super) url: String,
    pub(super) wire: Wire,
    pub(super) http: reqwest::Client,
}

impl HttpServer {
    /// Sends a request; returns its result and the id of a new session.
    pub(super) async fn request(
        &self,
        message: &Value,
        id: u64,
        session: Option<&Session>,
        attempt: &Attempt,
    ) -> Result<(Value, Option<String>), Fault> {
        let answered = self.post(message, session, attempt, Some(id)).await.map_err(Fault::Failed)?;
        // To a request with a session, 404 says that the session has ended.
        if answered.status == StatusCode::NOT_FOUND && session.is_some_and(|session| session.id.is_some()) {
            return Err(Fault::Gone);
        }
        let session_id = answered.headers.get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let messages = if has_type(&answered.headers, EVENTS) {
            events(&answered.body)
        } else {
            // What is no JSON is reported below, with its status.
            Vec::from_iter(serde_json::from_slice(&answered.body).ok())
        };
        // An error status may carry a JSON-RPC error that says more.
        for message in &messages {
            if let Some(result) = response(message, id) {
                return Ok((result?, session_id));
            }
        }
        let answered = self.wire.accepted(answered).map_err(Fault::Failed)?;
        let said = shortened(&String::from_utf8_lossy(&answered.body));
        let message = if said.is_empty() { "it answered nothing" } else { &format!("no MCP response: {said}") };
        Err(Fault::Failed(bad(message)))
    }

    /// Sends a message: a request with this id, or a notification.
    pub(super) async fn post(
        &self,
        message: &Value,
        session: Option<&Session>,
        attempt: &Attempt,
        id: Option<u64>,
    ) -> Result<Answered, CallFailure> {
        let mut request = self.http.post(&self.url).body(message.to_string());
        request = request.header(CONTENT_TYPE, "application/json");
        // The server chooses between the two; a client must accept both (basic/transports).
        request = request.header(ACCEPT, "application/json, text/event-stream");
        if let Some(session) = session {
            // Required behind the handshake since revision 2025-06-18; earlier servers do not know the header.
            request = request.header("mcp-protocol-version", &session.revision);
            if let Some(id) = &session.id {
                request = request.header(SESSION, id);
            }
            if session.is_stateless() {
                request = request.headers(mirrored(message));
            }
        }
        // A server may keep the stream open behind the answer.
        let sent = self.wire.send(request, attempt, |headers, body| {
            let Some(id) = id else { return false };
            // A blank line ends an event.
            let ends = body.ends_with(b"\n\n") || body.ends_with(b"\n\r\n");
            ends && has_type(headers, EVENTS) && events(body).iter().any(|message| response(message, id).is_some())
        });
        sent.await
    }
}

/// Headers that repeat the method and the tool's name, for proxies (revision 2026-07-28, transports: standard headers).
fn mirrored(message: &Value) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, pointer) in [("mcp-method", "/method"), ("mcp-name", "/params/name")] {
        if let Some(Value::String(text)) = message.pointer(pointer)
            && let Ok(value) = HeaderValue::try_from(text.as_str())
        {
            headers.insert(name, value);
        }
    }
    headers
}
