//! Messages of the Model Context Protocol: JSON-RPC 2.0, the handshake of the revisions up to 2025-11-25, and the form
//! of 2026-07-28 without one (modelcontextprotocol.io/specification: basic/lifecycle and basic/transports of each).

use searchmill_engine::operator::{CallFailure, Counts, FailureKind};
use serde_json::{Map, Value, json};

use super::super::service::bad;
use super::super::wire::shortened;

/// Revisions with a handshake, newest first; the first one is offered.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The revision without a handshake.
pub(super) const STATELESS: &str = "2026-07-28";
/// JSON-RPC: the method does not exist, or its params are wrong.
const REFUSED: [i64; 3] = [-32600, -32601, -32602];

/// What a client and a server agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    /// The revision.
    pub(super) revision: String,
    /// The session's id, if an HTTP server gave one.
    pub(super) id: Option<String>,
}

impl Session {
    /// Whether every request carries what the handshake would have said.
    pub(super) fn is_stateless(&self) -> bool {
        self.revision == STATELESS
    }
}

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server answered with an error.
    Rpc(CallFailure),
    /// The server has forgotten the session.
    Gone,
    /// There is no answer.
    Failed(CallFailure),
}

impl From<Fault> for CallFailure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Rpc(failure) | Fault::Failed(failure) => failure,
            Fault::Gone => CallFailure::new(FailureKind::Connection, "it ended the session".to_owned(), None),
        }
    }
}

/// The request of a client.
pub(super) fn request(id: u64, method: &str, mut params: Value, session: Option<&Session>) -> Value {
    if session.is_some_and(Session::is_stateless)
        && let Some(params) = params.as_object_mut()
    {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientInfo": client(),
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        params.insert("_meta".to_owned(), meta);
    }
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn client() -> Value {
    json!({"name": "searchmill", "version": env!("CARGO_PKG_VERSION")})
}

/// Params of `initialize`.
pub(super) fn hello() -> Value {
    json!({"protocolVersion": REVISIONS[0], "capabilities": {}, "clientInfo": client()})
}

/// The notification after the handshake.
pub(super) fn ready() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
}

/// Reads the server's part of the handshake.
pub(super) fn agreed(result: &Value, id: Option<String>) -> Result<Session, CallFailure> {
    let revision = result.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    if REVISIONS.contains(&revision) {
        return Ok(Session { revision: revision.to_owned(), id });
    }
    let message = format!("it speaks MCP revision `{}`; known are {}", shortened(revision), REVISIONS.join(", "));
    Err(CallFailure::new(FailureKind::Refused, message, None))
}

/// Returns the result in a message, if it is the response with that id.
pub(super) fn response(message: &Value, id: u64) -> Option<Result<Value, Fault>> {
    // A request of the server may have the same id: each side numbers its own.
    if message.get("id").and_then(Value::as_u64) != Some(id) || message.get("method").is_some() {
        return None;
    }
    if let Some(error) = message.get("error") {
        let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
        // These would be refused again; other errors may pass.
        let kind = if REFUSED.contains(&code) { FailureKind::Refused } else { FailureKind::ServerError };
        let said = shortened(error.get("message").and_then(Value::as_str).unwrap_or("an error without a message"));
        // It answers: the error is of this request.
        let failure = CallFailure::new(kind, format!("it answered the error {code}: {said}"), None);
        return Some(Err(Fault::Rpc(CallFailure { counts: Counts::Never, ..failure })));
    }
    if let Some(result) = message.get("result") {
        return Some(Ok(result.clone()));
    }
    Some(Err(Fault::Failed(bad("its response has no result"))))
}

/// Reads the data of all complete server-sent events (HTML standard, section 9.2).
pub(super) fn events(stream: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(stream);
    let (mut found, mut data) = (Vec::new(), String::new());
    for line in text.split_inclusive('\n') {
        // While a stream is read, its last line may still be incomplete.
        let Some(line) = line.strip_suffix('\n') else { break };
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            found.extend(serde_json::from_str(&data).ok());
            data.clear();
        } else if let Some(more) = line.strip_prefix("data:") {
            // One event may have several lines of data, joined by line breaks (the same section).
            data.push_str(more.strip_prefix(' ').unwrap_or(more));
            data.push('\n');
        }
    }
    found
}

/// The text of a tool's result, for the model.
///
/// # Errors
/// The text of an error that the tool reports, or what is wrong with the result.
pub(super) fn text_of(result: &Value) -> Result<String, String> {
    let result: &Map<String, Value> = result.as_object().ok_or("its result is no object")?;
    let blocks = match result.get("content") {
        Some(Value::Array(blocks)) => blocks.as_slice(),
        None if result.contains_key("structuredContent") => &[],
        _ => return Err("its result has no list `content`".to_owned()),
    };
    let mut text = blocks.iter().map(block).collect::<Vec<_>>().join("\n\n");
    // A tool with structured content should repeat it as text, but need not (server/tools).
    if text.trim().is_empty()
        && let Some(structured) = result.get("structuredContent")
    {
        text = structured.to_string();
    }
    let failed = result.get("isError").and_then(Value::as_bool).unwrap_or_default();
    if failed { Err(shortened(&text)) } else { Ok(text) }
}

/// A block of content as text. What is not text is named, not shown.
fn block(block: &Value) -> String {
    let parts: &[&str] = match text(block, "/type") {
        "text" => return text(block, "/text").to_owned(),
        "resource" if block.pointer("/resource/text").is_some() => ["/resource/uri", "/resource/text"].as_slice(),
        "resource_link" => &["/name", "/uri", "/description"],
        kind => return format!("[{kind} {}: not shown]", text(block, "/mimeType")),
    };
    parts.iter().map(|part| text(block, part)).collect::<Vec<_>>().join("\n").trim().to_owned()
}

fn text<'b>(block: &'b Value, pointer: &str) -> &'b str {
    block.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_told_from_other_messages() {
        assert!(response(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}), 3).is_none());
        assert!(response(&json!({"id": 2, "result": {}}), 3).is_none());
        assert!(matches!(response(&json!({"id": 3, "result": {"a": 1}}), 3), Some(Ok(result)) if result["a"] == 1));
        let refused = json!({"id": 3, "error": {"code": -32602, "message": "no such tool"}});
        let Some(Err(Fault::Rpc(failure))) = response(&refused, 3) else { panic!("an error") };
        assert_eq!((failure.kind, failure.message.contains("-32602: no such tool")), (FailureKind::Refused, true));
        assert!(matches!(response(&json!({"id": 3}), 3), Some(Err(Fault::Failed(_)))));
    }

    #[test]
    fn events_are_read_when_they_are_complete() {
        let stream =
            b": hi\r\nevent: message\r\ndata: {\"id\":1,\r\ndata:\"x\":2}\r\n\r\ndata: no json\n\ndata: {\"id\":2}\n";
        assert_eq!(events(stream), [json!({"id": 1, "x": 2})]);
    }

    #[test]
    fn contents_become_text() {
        let result = json!({"content": [{"type": "text", "text": "one"}, {"type": "image", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "u", "text": "two"}}]});
        assert_eq!(text_of(&result), Ok("one\n\n[image image/png: not shown]\n\nu\ntwo".to_owned()));
        assert_eq!(text_of(&json!({"structuredContent": {"a": 1}})), Ok("{\"a\":1}".to_owned()));
        let failed = json!({"content": [{"type": "text", "text": "no such page"}], "isError": true});
        assert_eq!(text_of(&failed), Err("no such page".to_owned()));
        for wrong in [json!([]), json!({}), json!({"content": "x"})] {
            assert!(text_of(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_known_revisions_are_agreed_on() {
        let agree = |revision: &str| agreed(&json!({"protocolVersion": revision}), None);
        assert!(agree("2025-03-26").is_ok() && agree("1999-01-01").is_err());
        let session = Session { revision: STATELESS.to_owned(), id: None };
        let asked = request(1, "tools/list", json!({}), Some(&session));
        assert_eq!(asked["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], STATELESS);
        assert!(request(1, "tools/list", json!({}), None)["params"].get("_meta").is_none());
    }
}
