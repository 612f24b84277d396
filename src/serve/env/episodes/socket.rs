//! `/ws`: the WebSocket of OpenEnv's clients (meta-pytorch/OpenEnv, 0.3). One connection is one session; its episode ends
//! with it. Messages are `{"type": "reset" | "step" | "state" | "mcp" | "close", "data": {…}}`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::action::Outcome;
use super::openenv::{Held, action};
use super::questions::Wanted;
use super::sessions::World;
use crate::serve::env::mcp;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::{Env, View};

/// Joined to a client's key in the answer to its handshake (RFC 6455, section 1.3).
const KEY: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Time for the last frame.
const FAREWELL: Duration = Duration::from_secs(1);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Answers the handshake, and serves the connection after it.
pub(crate) async fn upgrade(view: View, request: Request) -> Result<Response, Problem> {
    view.world()?;
    let accept = accepted(request.headers())?;
    let env = Arc::clone(&view.env);
    // Held until the connection has ended: a shutdown waits for its last frame.
    let active = env.enter().ok_or_else(Problem::draining)?;
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgraded.await {
            let config = WebSocketConfig::default().max_message_size(Some(env.limits.max_body));
            let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
            serve(env, socket).await;
        }
        drop(active);
    });
    let answer = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .body(Body::empty());
    answer.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// Returns the answer to the key of a handshake.
fn accepted(headers: &HeaderMap) -> Result<String, Problem> {
    for (name, wanted) in [(header::UPGRADE, "websocket"), (header::CONNECTION, "upgrade")] {
        // Lists: browsers send `Connection: keep-alive, Upgrade`.
        if !text(headers, &name).split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted)) {
            return Err(Problem::new(StatusCode::UPGRADE_REQUIRED, "/ws is a WebSocket: send `Upgrade: websocket`"));
        }
    }
    let key = text(headers, &header::SEC_WEBSOCKET_KEY);
    if text(headers, &header::SEC_WEBSOCKET_VERSION) != "13" || key.is_empty() {
        return Err(Problem::bad("the WebSocket needs version 13 and a key (RFC 6455)"));
    }
    Ok(STANDARD.encode(Sha1::digest(format!("{key}{KEY}"))))
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn serve(env: Arc<Env>, mut socket: Socket) {
    let mut held = Held::new(Arc::clone(&env));
    let idle = env.world().map_or(Duration::ZERO, World::idle);
    let mut closed = Box::pin(env.closed());
    let farewell = loop {
        let received = tokio::select! {
            received = socket.next() => received,
            () = &mut closed => break Some((CloseCode::Away, "the server is shutting down")),
            () = tokio::time::sleep(idle) => break Some((CloseCode::Policy, "idle for too long")),
        };
        let text = match received {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Binary(_))) => break Some((CloseCode::Unsupported, "messages are JSON text")),
            Some(Ok(Message::Close(_)) | Err(_)) | None => break None,
            // Pings and pongs: the library answers them, and they count as activity.
            Some(Ok(_)) => continue,
        };
        // A view of each message: an idle connection keeps no index in memory.
        let Some(answer) = answer(&mut held, &env.view("/ws"), &text).await else {
            break Some((CloseCode::Normal, ""));
        };
        // A client that does not read must not keep the server from ending.
        tokio::select! {
            sent = socket.send(Message::text(answer.to_string())) => if sent.is_err() { break None },
            () = &mut closed => break Some((CloseCode::Away, "the server is shutting down")),
            () = tokio::time::sleep(idle) => break None,
        }
    };
    // The episode ends first: the farewell may take a second.
    drop(held);
    let frame = farewell.map(|(code, reason)| CloseFrame { code, reason: reason.into() });
    // A client that is gone needs no farewell.
    drop(tokio::time::timeout(FAREWELL, socket.close(frame)).await);
}

/// Returns the answer to a message; `None` ends the connection.
async fn answer(held: &mut Held, view: &View, text: &str) -> Option<Value> {
    let mut message: Value = match serde_json::from_str(text) {
        Ok(message) => message,
        Err(error) => return Some(failed("INVALID_JSON", &format!("invalid JSON: {error}"))),
    };
    let data = match message.get_mut("data") {
        Some(data) => data.take(),
        None => json!({}),
    };
    let answered = match message["type"].as_str().unwrap_or_default() {
        "reset" => match serde_json::from_value::<Wanted>(data) {
            Ok(wanted) => held.reset(&wanted).map(|outcome| observed(&outcome)),
            Err(error) => Err(Problem::bad(format!("`data`: {error}"))),
        },
        "step" => step(held, view, data).await,
        "state" => state(held).await,
        "mcp" => Ok(json!({"type": "mcp", "data": mcp::answer(view, data).await})),
        "close" => return None,
        other => return Some(failed("UNKNOWN_TYPE", &format!("unknown message type: `{other}`"))),
    };
    Some(answered.unwrap_or_else(|problem| {
        let code = match problem.status() {
            StatusCode::TOO_MANY_REQUESTS => "CAPACITY_REACHED",
            status if status.is_client_error() => "VALIDATION_ERROR",
            _ => "EXECUTION_ERROR",
        };
        failed(code, problem.detail())
    }))
}

fn failed(code: &str, message: &str) -> Value {
    json!({"type": "error", "data": {"message": message, "code": code}})
}

fn observed(outcome: &Outcome) -> Value {
    json!({"type": "observation", "data": outcome})
}

/// Carries out a step: a message of the model, or one of OpenEnv's own actions for tools.
async fn step(held: &Held, view: &View, data: Value) -> Result<Value, Problem> {
    let world = view.world()?;
    let kind = data["type"].as_str();
    if kind == Some("list_tools") {
        let mut tools = Vec::new();
        for definition in &world.environment.tools() {
            let tool = &definition["function"];
            let (name, about, schema) = (&tool["name"], &tool["description"], &tool["parameters"]);
            tools.push(json!({"name": name, "description": about, "input_schema": schema}));
        }
        return Ok(json!({"type": "observation",
            "data": {"observation": {"tools": tools}, "reward": null, "done": false}}));
    }
    let tool = (kind == Some("call_tool")).then(|| data["tool_name"].as_str().unwrap_or_default().to_owned());
    let action = match &tool {
        Some(name) => action(json!({"message": "", "tool_calls": [{"name": name, "arguments": data["arguments"]}]}))?,
        None => action(data)?,
    };
    let Some(play) = held.play() else {
        return Err(Problem::new(StatusCode::CONFLICT, "there is no episode yet; reset first"));
    };
    let outcome = play.lock().await.step(&world.environment, view, action).await?;
    let mut answer = observed(&outcome);
    if let Some(name) = tool {
        let results = outcome.observation.messages.iter().filter(|message| message.role == "tool");
        let text = results.map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n");
        let observation = &mut answer["data"]["observation"];
        observation["tool_name"] = name.into();
        observation["result"] = text.into();
        observation["error"] = Value::Null;
    }
    Ok(answer)
}

async fn state(held: &Held) -> Result<Value, Problem> {
    let state = match held.play() {
        Some(play) => play.lock().await.state(),
        None => super::action::State::default(),
    };
    Ok(json!({"type": "state", "data": state}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_has_the_answer_of_its_key() {
        // The example of RFC 6455, section 1.3.
        let mut headers = HeaderMap::new();
        let mut set = |name, value: &'static str| drop(headers.insert(name, value.parse().unwrap()));
        set(header::UPGRADE, "WebSocket");
        set(header::CONNECTION, "keep-alive, Upgrade");
        set(header::SEC_WEBSOCKET_VERSION, "13");
        set(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accepted(&headers).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        headers.remove(header::UPGRADE);
        assert_eq!(accepted(&headers).expect_err("plain HTTP").status(), StatusCode::UPGRADE_REQUIRED);
    }
}
