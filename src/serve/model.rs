//! A decoder behind an OpenAI-compatible API: `/v1/models`, `/v1/chat/completions`, `/v1/completions`, `/health`. All
//! requests share one batch.

use std::net::TcpListener;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use searchmill_models::inference::{Completion, Event, Request, TextModel};
use serde_json::{Value, json};

use super::door::{self, Door};
use super::wire::{Refusal, Served};
use super::{chat, completion};

/// What a streamed answer is made of.
pub(super) enum Told<'a> {
    Text(&'a str),
    End(&'a Completion),
}

/// Answers until the process is told to end.
///
/// # Errors
/// When the address cannot be served any more.
pub(crate) async fn serve(
    listener: TcpListener,
    model: TextModel,
    name: String,
    max_tokens: usize,
    door: Door,
    until: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let created = searchmill_engine::execute::unix_time() as u64;
    let served = Arc::new(Served { model, name, max_tokens, created });
    let listener = tokio::net::TcpListener::from_std(listener)?;
    door::serve(listener, router(served), door, until).await
}

fn router(served: Arc<Served>) -> Router {
    Router::new()
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completion::complete))
        .with_state(served)
}

async fn models(State(served): State<Arc<Served>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [
        {"id": served.name, "object": "model", "created": served.created, "owned_by": "searchmill"}
    ]}))
}

/// An answer as server-sent events; `part` makes the API's chunks of what the model says.
pub(super) fn stream(
    served: &Served,
    request: Request,
    part: impl FnMut(&Told<'_>) -> Vec<Value> + Send + 'static,
) -> Result<Response, Refusal> {
    let events = served.model.start(request).map_err(Refusal::bad)?;
    let chunks = stream::unfold(Some((events, part)), |state| async move {
        let (mut events, mut part) = state?;
        let line = |value: &Value| format!("data: {value}\n\n");
        let lines = |values: Vec<Value>| values.iter().map(line).collect::<String>();
        match events.recv().await {
            Some(Event::Text(text)) => {
                let bytes = Bytes::from(lines(part(&Told::Text(&text))));
                Some((Ok::<_, std::convert::Infallible>(bytes), Some((events, part))))
            }
            Some(Event::Done(Ok(done))) => {
                Some((Ok(Bytes::from(lines(part(&Told::End(&done))) + "data: [DONE]\n\n")), None))
            }
            Some(Event::Done(Err(message))) => {
                let error = json!({"error": {"message": message, "type": "server_error"}});
                Some((Ok(Bytes::from(line(&error))), None))
            }
            None => None,
        }
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response())
}
