//! JSON bodies of requests.

use std::error::Error;

use axum::Json;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;

/// Parses JSON; the error names the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let Json(read) = Json::from_bytes(bytes).map_err(|error| {
        let problem = error.source().map_or_else(|| error.body_text(), ToString::to_string);
        // The problem begins with its path in the body, if there is one: `messages[0].role: …`.
        let path = problem.split_once(": ").map(|(path, _)| path).filter(|path| !path.contains(' ')).map(str::to_owned);
        let refusal = Refusal::bad(format!("the body is not a valid request: {problem}"));
        let missing = problem.split_once("missing field `").and_then(|(_, rest)| rest.split('`').next());
        match (path, missing) {
            (None, Some(field)) => refusal.of(field).coded("missing_required_parameter"),
            (Some(path), Some(field)) => refusal.of(format!("{path}.{field}")).coded("missing_required_parameter"),
            (Some(path), None) => refusal.of(path).coded("invalid_type"),
            (None, None) => refusal,
        }
    })?;
    Ok(read)
}
