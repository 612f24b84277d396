//! Serves a decoder over an OpenAI-compatible API: `/v1/models`, `/v1/chat/completions`, `/v1/completions`,
//! `/health`. All requests share one batch.

use std::net::TcpListener;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use searchmill_models::inference::TextModel;
use serde_json::{Value, json};

use super::door::{self, Door};
use super::wire::Served;
use super::{chat, completion};

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
