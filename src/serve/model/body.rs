//! Bodies of requests to a model.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use super::options::Options;
use crate::serve::http::body::parse;
use crate::serve::http::refusal::Refusal;

/// A JSON body: what all routes share, and a route's own part.
pub(super) struct Body<T> {
    pub(super) options: Options,
    pub(super) own: T,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        // Web pages of other origins can send other types without asking.
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.split(';').next().is_none_or(|kind| !kind.trim().eq_ignore_ascii_case("application/json")) {
            let message = "the request needs the header `Content-Type: application/json`";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|error| Refusal::new(error.status(), error.body_text()))?;
        // Parsed twice: the raw JSON of tools (`RawValue`) cannot be read through `serde(flatten)`.
        Ok(Self { options: parse(&bytes)?, own: parse(&bytes)? })
    }
}
