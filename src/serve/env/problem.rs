//! Requests that cannot be answered: `{"detail": …}`, the error format of the original retrieval servers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::serve::http::refusal::Refusal;

/// The reason why a request has no answer.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// Creates the error of a server that is shutting down.
    pub(super) fn draining() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let (status, detail) = refusal.into_parts();
        Self { status, detail }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut answer = (self.status, Json(json!({"detail": self.detail}))).into_response();
        // Both pass: the queue empties, and a server that stops is usually started again.
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}
