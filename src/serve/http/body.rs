//! JSON bodies of requests.

use std::error::Error;

use axum::Json;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;

/// Parses JSON; the error names the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let error = match Json::from_bytes(bytes) {
        Ok(Json(read)) => return Ok(read),
        Err(error) => error,
    };
    let problem = match error.source() {
        Some(source) => source.to_string(),
        None => error.body_text(),
    };
    let refusal = Refusal::bad(format!("the body is not a valid request: {problem}"));
    // The problem begins with its path in the body, if there is one: `messages[0].role: …`.
    let path = problem.split_once(": ").map(|(path, _)| path).filter(|path| !path.contains(' '));
    // The name stands between back-quotes: serde's error has no field for it.
    let missing = problem.split_once("missing field `").and_then(|(_, rest)| rest.split('`').next());
    Err(match (path, missing) {
        (None, Some(field)) => refusal.of(field).coded("missing_required_parameter"),
        (Some(path), Some(field)) => refusal.of(format!("{path}.{field}")).coded("missing_required_parameter"),
        (Some(path), None) => refusal.of(path).coded("invalid_type"),
        (None, None) => refusal,
    })
}
