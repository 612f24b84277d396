//! What cannot be answered, as JSON: `{"error": message, "help": how to mend it}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use searchmill_engine::Failure;
use serde_json::{Value, json};

use crate::serve::http::refusal::Refusal;

/// A request that cannot be answered.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    message: String,
    help: Option<String>,
}

impl Problem {
    pub(super) fn missing(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into(), help: None }
    }

    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, message: message.into(), help: None }
    }

    /// What was there, and is no longer.
    pub(super) fn gone(message: impl Into<String>) -> Self {
        Self { status: StatusCode::GONE, message: message.into(), help: None }
    }

    pub(super) fn broken(message: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message: message.into(), help: None }
    }

    /// Returns what the page is told.
    pub(super) fn into_json(self) -> Value {
        json!({"error": self.message, "help": self.help})
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Usage { message, help } => Self { status: StatusCode::BAD_REQUEST, message, help },
            // Errors of a file, each with its place: they are the user's to mend.
            failure @ Failure::Pipeline(..) => {
                Self { status: StatusCode::BAD_REQUEST, message: failure.to_string(), help: None }
            }
            other => Self::broken(other.to_string()),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let (status, message) = refusal.into_parts();
        Self { status, message, help: None }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(self.into_json())).into_response()
    }
}
