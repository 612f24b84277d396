//! The built page: its sources are in `web/`, `scripts/build-page` builds them.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

pub(super) const PAGE: &str = include_str!("built/index.html");
pub(super) const SCRIPT: &[u8] = include_bytes!("built/page.js");
pub(super) const STYLE: &[u8] = include_bytes!("built/page.css");

pub(super) fn asset(kind: &'static str, body: &'static [u8]) -> Response {
    // The files belong to this build: a browser asks again after an update.
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], body).into_response()
}
