//! Health endpoint: `/healthz` for supervisors of the daemon, `/healthz/schedules` and `/status` for monitoring.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use searchmill_engine::Failure;
use serde_json::{Value, json};

use crate::serve::http::access::{self, Door};

/// Maximum time without a round of the loop; after that, the daemon counts as unhealthy.
const SILENCE: Duration = Duration::from_secs(30);

/// Last status of the daemon.
pub(super) struct Health(Mutex<Said>);

struct Said {
    at: Instant,
    trouble: Option<String>,
    /// The schedules that fail.
    failing: Vec<Value>,
    status: Value,
}

impl Health {
    pub(super) fn new() -> Self {
        let (at, failing) = (Instant::now(), Vec::new());
        Self(Mutex::new(Said { at, trouble: None, failing, status: Value::Null }))
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a round of the loop.
    pub(super) fn beat(&self, trouble: Option<String>, failing: Vec<Value>, status: Value) {
        let at = Instant::now();
        *self.said() = Said { at, trouble, failing, status };
    }

    fn trouble(&self) -> Option<String> {
        let said = self.said();
        let silence = said.at.elapsed();
        match &said.trouble {
            // A loop that hangs cannot report it: the endpoint notices by the time of the last round.
            None if silence > SILENCE => Some(format!("the daemon's loop has not run for {} s", silence.as_secs())),
            trouble => trouble.clone(),
        }
    }
}

/// Binds the address before anything runs, to detect that it is in use.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    // The endpoint has no token, and its answers name pipelines, files and errors.
    if !address.ip().is_loopback() {
        let failure = Failure::usage(format!("`--listen {address}` is not a loopback address"));
        return Err(failure.with_help("listen on 127.0.0.1, and use a proxy for access from other machines"));
    }
    access::bind(address)
}

/// Serves requests until the daemon ends.
pub(super) async fn answer(listener: TcpListener, health: Arc<Health>) {
    let router = Router::new().route("/healthz", get(healthz)).route("/healthz/schedules", get(schedules));
    let router = router.route("/status", get(status)).with_state(health);
    let served = async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let Some(door) = Door::new(listener.local_addr()?, None) else { return Ok(()) };
        access::serve(listener, router, door, std::future::pending()).await
    };
    if let Err(error) = served.await {
        tracing::warn!("the health endpoint failed: {error}");
    }
}

async fn healthz(State(health): State<Arc<Health>>) -> (StatusCode, Json<Value>) {
    let failing = health.said().failing.clone();
    match health.trouble() {
        Some(trouble) => {
            let body = json!({"status": "trouble", "trouble": trouble, "failing": failing});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body))
        }
        // A supervisor restarts what answers 503: that mends no pipeline.
        None if failing.is_empty() => (StatusCode::OK, Json(json!({"status": "ok", "failing": failing}))),
        None => (StatusCode::OK, Json(json!({"status": "failing", "failing": failing}))),
    }
}

/// Like `/healthz`, but 503 also while a schedule fails.
async fn schedules(State(health): State<Arc<Health>>) -> (StatusCode, Json<Value>) {
    let (status, body) = healthz(State(Arc::clone(&health))).await;
    let failing = !health.said().failing.is_empty();
    (if failing { StatusCode::SERVICE_UNAVAILABLE } else { status }, body)
}

async fn status(State(health): State<Arc<Health>>) -> (StatusCode, Json<Value>) {
    // Not in the `match`: the lock would be held until the answer is made.
    let status = health.said().status.clone();
    match status {
        // The first round is not complete.
        Value::Null => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "starting"}))),
        status => (StatusCode::OK, Json(status)),
    }
}
