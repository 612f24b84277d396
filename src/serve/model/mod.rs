//! Serves a decoder over an OpenAI-compatible API: `/v1/models`, `/v1/chat/completions`, `/v1/completions`,
//! `/health`. All requests share one batch.

mod answer;
mod body;
mod chat;
mod chat_choice;
mod completion;
mod message;
mod options;
mod wire;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use searchmill_models::inference::TextModel;
use serde_json::{Value, json};

use self::wire::Served;
use super::http::access::{self, Door};
use super::http::refusal::Refusal;

/// Serves requests until the process is stopped.
///
/// # Errors
/// If the address can no longer be served.
pub(crate) async fn serve(
    listener: TcpListener,
    model: TextModel,
    name: String,
    max_tokens: usize,
    door: Door,
    until: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let created = searchmill_engine::unix_time() as u64;
    let served = Arc::new(Served { model, name, max_tokens, created, answers: AtomicU64::new(0) });
    let listener = tokio::net::TcpListener::from_std(listener)?;
    access::serve(listener, router(served), door, until).await
}

fn router(served: Arc<Served>) -> Router {
    let router = Router::new()
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/v1/models", get(models))
        // The name of a model may contain slashes (`organization/model`).
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completion::complete));
    access::with_fallbacks(router, IntoResponse::into_response)
        // The door limits bodies.
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(served)
}

async fn models(State(served): State<Arc<Served>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&served)]}))
}

async fn model(State(served): State<Arc<Served>>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    if id == served.name { Ok(Json(described(&served))) } else { Err(served.unknown(&id)) }
}

fn described(served: &Served) -> Value {
    json!({"id": served.name, "object": "model", "created": served.created, "owned_by": "searchmill",
        "max_model_len": served.model.context()})
}
