//! The tools of the server over the Model Context Protocol (modelcontextprotocol.io, revisions 2024-11-05 to 2026-07-28):
//! `retrieve` as DeepSearch-RL's seed has it, and a lean `search`. The server keeps no sessions, so one function answers
//! the messages of all transports: streamable HTTP here, the older SSE in `sse`, lines of text in `stdio`, and the
//! dialect of OpenEnv's clients (`/mcp` without a handshake, `openenv/session/…`).

pub(super) mod sse;
pub(super) mod stdio;
pub(super) mod streams;

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use searchmill_agent::protocol::passages;
use searchmill_retrieval::Found;
use serde_json::{Value, json};

use super::episodes::sessions::random_id;
use super::problem::Problem;
use super::state::View;

/// Known revisions with a handshake, oldest first.
const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The revision without a handshake: each request names it in its `_meta`.
const MODERN: &str = "2026-07-28";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Time in milliseconds for which a client may keep the list of tools.
const LIST_AGE: u32 = 60_000;
/// Chunks per call of `retrieve`, as in the seed's configuration.
const RETRIEVE: usize = 3;
/// Passages per call of `search`, as in `rollout`.
const SEARCH: usize = 5;

/// Errors of JSON-RPC (jsonrpc.org/specification, section 5.1).
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
/// Errors of the revision 2026-07-28.
const HEADER_MISMATCH: i32 = -32020;
const UNSUPPORTED_VERSION: i32 = -32022;

/// `POST /mcp`: streamable HTTP, each answer as one JSON object.
pub(super) async fn post(view: View, headers: HeaderMap, body: Bytes) -> Response {
    let revision = headers.get("mcp-protocol-version").and_then(|value| value.to_str().ok());
    // The specification demands status 400 here (Transports, Protocol Version Header).
    if let Some(unknown) = revision.filter(|revision| !is_known(revision)) {
        return (StatusCode::BAD_REQUEST, Json(unsupported(&Value::Null, unknown))).into_response();
    }
    let said = match parse(&view, &body) {
        Ok(said) => said,
        Err((status, answer)) => return (status, Json(answer)).into_response(),
    };
    if let Some(differing) = mismatch(&headers, &said) {
        let detail = format!("the header {differing} differs from the body");
        return (StatusCode::BAD_REQUEST, Json(error(&Value::Null, HEADER_MISMATCH, detail))).into_response();
    }
    match answers(&view, said).await {
        Some(answer) => Json(answer).into_response(),
        // Only notifications and responses: the specification demands 202 and no body.
        None => StatusCode::ACCEPTED.into_response(),
    }
}

fn is_known(revision: &str) -> bool {
    revision == MODERN || REVISIONS.contains(&revision)
}

fn unsupported(id: &Value, revision: &str) -> Value {
    let mut answer = error(id, UNSUPPORTED_VERSION, format!("unknown protocol version `{revision}`"));
    answer["error"]["data"] = json!({"supported": versions(), "requested": revision});
    answer
}

fn versions() -> Vec<&'static str> {
    REVISIONS.into_iter().chain([MODERN]).collect()
}

/// Returns the header that differs from what it repeats of the body, for proxies that read only headers.
fn mismatch(headers: &HeaderMap, said: &Value) -> Option<&'static str> {
    if differs(headers, "mcp-method", &said["method"]) {
        return Some("Mcp-Method");
    }
    if said["method"] == "tools/call" && differs(headers, "mcp-name", &said["params"]["name"]) {
        return Some("Mcp-Name");
    }
    None
}

/// Whether there is such a header, and it is not what the body says.
fn differs(headers: &HeaderMap, name: &str, said: &Value) -> bool {
    headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|header| said != header)
}

/// `GET /mcp`, `DELETE /mcp`: there are no messages without a request, and no sessions.
pub(super) async fn no_session() -> Response {
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this MCP server keeps no sessions: send POST requests");
    ([(header::ALLOW, "POST")], problem).into_response()
}

/// Answers the text of a message, or of a batch. `None` if nothing is to be answered.
pub(super) async fn read(view: &View, text: &[u8]) -> Option<Value> {
    match parse(view, text) {
        Ok(said) => answers(view, said).await,
        Err((_, answer)) => Some(answer),
    }
}

/// Parses a text. If it is not JSON, or a batch that asks for too much, returns the answer to it.
fn parse(view: &View, text: &[u8]) -> Result<Value, (StatusCode, Value)> {
    let said: Value = serde_json::from_slice(text)
        .map_err(|problem| (StatusCode::OK, error(&Value::Null, PARSE_ERROR, format!("invalid JSON: {problem}"))))?;
    // All answers to a batch are in memory at the same time, so a batch counts as one request.
    if let Value::Array(messages) = &said {
        let documents = messages.iter().map(|message| documents(view, message)).sum();
        view.check_batch(messages.len(), documents)
            .map_err(|problem| (problem.status(), error(&Value::Null, INVALID_REQUEST, problem.detail())))?;
    }
    Ok(said)
}

/// Number of documents for which a message asks.
fn documents(view: &View, message: &Value) -> usize {
    let params = &message["params"];
    let top_k = match (message["method"].as_str(), params["name"].as_str()) {
        (Some("tools/call"), Some("retrieve")) => view.top_k("top_k", None, RETRIEVE),
        (Some("tools/call"), Some("search")) => view.top_k("top_k", params["arguments"]["top_k"].as_i64(), SEARCH),
        _ => Ok(0),
    };
    top_k.unwrap_or(0)
}

/// Answers a message, or the messages of a batch.
async fn answers(view: &View, said: Value) -> Option<Value> {
    let messages = match said {
        // An empty batch is one invalid request (JSON-RPC 2.0, section 6): `answer` rejects it.
        Value::Array(messages) if !messages.is_empty() => messages,
        message => return answer(view, message).await,
    };
    let mut answers = Vec::new();
    for message in messages {
        answers.extend(answer(view, message).await);
    }
    (!answers.is_empty()).then_some(Value::Array(answers))
}

/// Answers a message. `None` for notifications and responses.
pub(super) async fn answer(view: &View, message: Value) -> Option<Value> {
    let Some(method) = message["method"].as_str() else {
        let is_response = message.get("result").is_some() || message.get("error").is_some();
        let detail = "a request needs `jsonrpc`, `id` and `method`";
        return (!is_response).then(|| error(&Value::Null, INVALID_REQUEST, detail));
    };
    // Without an id it is a notification, which JSON-RPC never answers, not even with an error.
    let id = message.get("id")?;
    let params = &message["params"];
    let revision = params["_meta"][VERSION].as_str();
    if let Some(unknown) = revision.filter(|revision| !is_known(revision)) {
        return Some(unsupported(id, unknown));
    }
    let result = match method {
        "server/discover" => Ok(discovered()),
        "initialize" => Ok(initialized(params)),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({"tools": [retrieve_tool(), search_tool()]})),
        "tools/call" => call(view, params).await,
        "openenv/session/create" => Ok(json!({"session_id": random_id()})),
        "openenv/session/close" => Ok(json!({"session_id": params["session_id"], "closed": true})),
        _ => Err((METHOD_NOT_FOUND, format!("unknown method `{method}`"))),
    };
    Some(match result {
        Ok(mut result) if revision == Some(MODERN) => {
            result["resultType"] = "complete".into();
            if method == "tools/list" {
                result["ttlMs"] = LIST_AGE.into();
                result["cacheScope"] = "public".into();
            }
            json!({"jsonrpc": "2.0", "id": id, "result": result})
        }
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err((code, message)) => error(id, code, message),
    })
}

fn error(id: &Value, code: i32, message: impl Into<String>) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message.into()}})
}

fn initialized(params: &Value) -> Value {
    let wanted = params["protocolVersion"].as_str().unwrap_or_default();
    // To an unknown revision the server replies with its latest one; the client decides whether to go on.
    let revision = REVISIONS.iter().find(|known| **known == wanted).unwrap_or(&REVISIONS[REVISIONS.len() - 1]);
    json!({"protocolVersion": revision, "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": {"name": "searchmill", "version": env!("CARGO_PKG_VERSION")},
        "instructions": "Searches a collection of documents."})
}

fn discovered() -> Value {
    json!({"supportedVersions": versions(), "capabilities": {"tools": {"listChanged": false}},
        "instructions": "Searches a collection of documents.", "ttlMs": LIST_AGE, "cacheScope": "public",
        "_meta": {"io.modelcontextprotocol/serverInfo":
            {"name": "searchmill", "version": env!("CARGO_PKG_VERSION")}}})
}

/// The tool of DeepSearch-RL's seed (ninehills/deepsearch-rl at 8fc901e), with its arguments and results.
fn retrieve_tool() -> Value {
    let item = json!({"type": "object", "additionalProperties": true});
    json!({
        "name": "retrieve",
        "description": "retrieve relevant chunks from the corpus, with_meta MUST False",
        "inputSchema": {"type": "object", "properties": {
            "query": {"title": "Query", "type": "string"},
            "with_meta": {"default": false, "title": "With Meta", "type": "boolean"}}, "required": ["query"]},
        // FastMCP's mark of a result that is not an object.
        "outputSchema": {"type": "object", "properties": {"result": {"type": "array", "items": item}},
            "required": ["result"], "x-fastmcp-wrap-result": true},
        "annotations": {"readOnlyHint": true, "openWorldHint": false},
    })
}

fn search_tool() -> Value {
    json!({
        "name": "search",
        "description": "Search the document collection. Returns the passages that fit the query best.",
        "inputSchema": {"type": "object", "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "top_k": {"type": "integer", "minimum": 1, "description": "Number of passages."}}, "required": ["query"]},
        "annotations": {"readOnlyHint": true, "openWorldHint": false},
    })
}

/// Runs a tool. A failed search is a result marked as an error, which the model reads.
async fn call(view: &View, params: &Value) -> Result<Value, (i32, String)> {
    let name = params["name"].as_str().unwrap_or_default();
    let arguments = &params["arguments"];
    let called = match name {
        "retrieve" => retrieve(view, arguments).await,
        "search" => search(view, arguments).await,
        _ => return Err((INVALID_PARAMS, format!("unknown tool `{name}`; the tools are `retrieve` and `search`"))),
    };
    let mut result = match called {
        Ok(result) => result,
        Err(problem) => {
            let text = format!("Error: {}", problem.detail());
            json!({"content": [{"type": "text", "text": text}], "isError": true})
        }
    };
    result["_meta"] = json!({"searchmill/index": view.index.text});
    Ok(result)
}

async fn retrieve(view: &View, arguments: &Value) -> Result<Value, Problem> {
    let with_meta = arguments["with_meta"].as_bool().unwrap_or(false);
    let found = found(view, arguments, view.top_k("top_k", None, RETRIEVE)?).await?;
    let mut items = Vec::with_capacity(found.len());
    for chunk in &found {
        let mut item = json!({"chunk": chunk.contents, "chunk_id": chunk.chunk_id, "score": chunk.score});
        if with_meta {
            item["metadata"] = json!({"document_id": chunk.document_id, "title": chunk.title});
        }
        items.push(item);
    }
    // Also as text: revisions before 2025-06-18 do not have `structuredContent`.
    let items = Value::Array(items);
    Ok(json!({"content": [{"type": "text", "text": items.to_string()}], "structuredContent": {"result": items},
        "isError": false}))
}

async fn search(view: &View, arguments: &Value) -> Result<Value, Problem> {
    let given = match &arguments["top_k"] {
        Value::Null => None,
        number => Some(number.as_i64().ok_or_else(|| Problem::bad("`top_k` must be a whole number"))?),
    };
    let found = found(view, arguments, view.top_k("top_k", given, SEARCH)?).await?;
    Ok(json!({"content": [{"type": "text", "text": passages(&found, false)}], "isError": false}))
}

async fn found(view: &View, arguments: &Value, top_k: usize) -> Result<Vec<Found>, Problem> {
    let query = arguments["query"].as_str().ok_or_else(|| Problem::bad("the tool needs a text `query`"))?;
    if query.trim().is_empty() {
        return Err(Problem::bad("the `query` is empty"));
    }
    let found = view.search(vec![query.to_owned()], top_k).await?.pop().unwrap_or_default();
    Ok(found.into_iter().map(|chunk| chunk.found).collect())
}
