//! Refused requests, in the error format of the OpenAI API.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A request that cannot be answered.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
    /// The param to blame, as a path in the body.
    param: Option<String>,
    code: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Creates the error of a param whose value is wrong.
    pub(crate) fn value(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad(message).of(param).coded("invalid_value")
    }

    /// Creates the error of an option, or of a value of it, that the server does not implement.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad(message).of(param).coded("unsupported_parameter")
    }

    pub(crate) fn of(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub(crate) fn coded(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns status and message, for servers with another error format.
    pub(crate) fn into_parts(self) -> (StatusCode, String) {
        (self.status, self.message)
    }

    pub(crate) fn body(&self) -> Value {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}
