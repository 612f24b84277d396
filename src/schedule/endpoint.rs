//! Health endpoint: `/healthz` for supervisors, `/status` for monitoring.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use searchmill_engine::Failure;
use serde_json::{Value, json};

use crate::serve::door::{self, Door};

/// Maximum time without a round of the loop; after that, the daemon counts as unhealthy.
const SILENCE: Duration = Duration::from_secs(30);

/// Last status of the daemon.
pub(super) struct Health {
    said: Mutex<Said>,
}

struct Said {
    at: Instant,
    trouble: Option<String>,
    status: Value,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { said: Mutex::new(Said { at: Instant::now(), trouble: None, status: Value::Null }) }
    }

    /// Records a round of the loop.
    pub(super) fn beat(&self, trouble: Option<String>, status: Value) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Said { at: Instant::now(), trouble, status };
    }

    fn trouble(&self) -> Option<String> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = said.at.elapsed();
        match &said.trouble {
            None if silence > SILENCE => Some(format!("the daemon's loop has not run for {} s", silence.as_secs())),
            trouble => trouble.clone(),
        }
    }

    fn status(&self) -> Value {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).status.clone()
    }
}

/// Binds the address before anything runs, to detect that it is in use.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    if !address.ip().is_loopback() {
        let failure = Failure::usage(format!("`--listen {address}` is not a loopback address"));
        return Err(failure.with_help("listen on 127.0.0.1, and use a proxy for access from other machines"));
    }
    TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Failure::usage(format!("cannot listen on {address}: {error}")))
}

/// Serves requests until the daemon ends.
pub(super) async fn answer(listener: TcpListener, health: Arc<Health>) {
    let router = Router::new().route("/healthz", get(healthz)).route("/status", get(status)).with_state(health);
    let served = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => served(listener, router).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::warn!("the health endpoint failed: {error}");
    }
}

async fn served(listener: tokio::net::TcpListener, router: Router) -> std::io::Result<()> {
    let Some(door) = Door::new(listener.local_addr()?, None) else { return Ok(()) };
    door::serve(listener, router, door, std::future::pending()).await
}

async fn healthz(State(health): State<Arc<Health>>) -> (StatusCode, Json<Value>) {
    match health.trouble() {
        None => (StatusCode::OK, Json(json!({"status": "ok"}))),
        Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "trouble", "trouble": trouble}))),
    }
}

async fn status(State(health): State<Arc<Health>>) -> (StatusCode, Json<Value>) {
    match health.status() {
        // The first round is not complete.
        Value::Null => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "starting"}))),
        status => (StatusCode::OK, Json(status)),
    }
}
