//! JSON bodies of the routes: unknown fields are ignored, and null counts as absent.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::serve::http::body::parse;

/// A request, whatever its content type: the original servers do not check it, and searches change nothing.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned> Asked<T> {
    /// Reads a JSON object.
    ///
    /// # Errors
    /// Fails with the field to blame.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Problem> {
        // serde would take a list as the fields in their order.
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return Err(Problem::bad("the body must be a JSON object"));
        }
        Ok(Self(parse(bytes)?))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|error| Problem::new(error.status(), error.body_text()))?;
        Self::read(&bytes)
    }
}
