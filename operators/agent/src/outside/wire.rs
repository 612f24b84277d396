//! HTTP requests to services: headers, limits, and what a failure means.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{RequestBuilder, StatusCode};
use searchmill_engine::operator::{
    Attempt, CallFailure, Context, Counts, FailureKind, OperatorError, Redactor, Secret, root_cause,
};

use crate::content_encoding::decoded;
use crate::retry_after::retry_after;
use crate::words::Words;

/// Maximum number of bytes read of an answer.
pub(super) const MOST_BYTES: usize = 16 << 20;
/// Maximum length of a service's words in a message, in characters.
const DETAIL_CHARS: usize = 200;

/// Headers and timeout of a service's requests.
pub(super) struct Wire {
    headers: HeaderMap,
    timeout: Duration,
    redactor: Redactor,
}

/// An answer with its body.
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

fn put(headers: &mut HeaderMap, name: &str, value: &str, is_secret: bool) -> Result<(), OperatorError> {
    let (Ok(header), Ok(mut value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
        let message = format!("the value of the header `{name}` contains characters that are not allowed in HTTP");
        return Err(OperatorError::machine(message));
    };
    // Debug texts and HTTP/2's compression of headers leave a sensitive value out.
    value.set_sensitive(is_secret);
    headers.insert(header, value);
    Ok(())
}

/// Whether the body of an answer has this media type.
pub(super) fn has_type(headers: &HeaderMap, kind: &str) -> bool {
    let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    found.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind)
}

impl Wire {
    /// Resolves the secrets.
    ///
    /// # Errors
    /// If a secret is unknown or contains characters not allowed in a header.
    pub(super) fn open(
        headers: &BTreeMap<String, String>,
        secrets: &BTreeMap<String, Secret>,
        api_key: Option<&Secret>,
        timeout_seconds: f64,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            put(&mut all, name, value, false)?;
        }
        for (name, secret) in secrets {
            put(&mut all, name, context.secret(secret)?.trim(), true)?;
        }
        if let Some(secret) = api_key {
            put(&mut all, AUTHORIZATION.as_str(), &format!("Bearer {}", context.secret(secret)?.trim()), true)?;
        }
        let redactor = context.redactor().clone();
        Ok(Self { headers: all, timeout: Duration::from_secs_f64(timeout_seconds), redactor })
    }

    /// Sends a request and reads its answer; `enough` may end the reading early. An error status is an answer, too.
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        attempt: &Attempt,
        enough: impl Fn(&HeaderMap, &[u8]) -> bool + Send,
    ) -> Result<Answered, CallFailure> {
        let mut request = request.timeout(self.timeout);
        if !self.headers.contains_key(ACCEPT) {
            request = request.header(ACCEPT, "application/json, text/*;q=0.9, */*;q=0.5");
        }
        let mut response = request.headers(self.headers.clone()).send().await.map_err(|error| self.broken(&error))?;
        attempt.received();
        let (status, headers, mut body) = (response.status(), response.headers().clone(), Vec::new());
        while let Some(bytes) = response.chunk().await.map_err(|error| self.broken(&error))? {
            attempt.received();
            if body.len() + bytes.len() > MOST_BYTES {
                let message = format!("its answer is longer than {} MiB (limit)", MOST_BYTES >> 20);
                return Err(CallFailure::new(FailureKind::BadResponse, message, None));
            }
            body.extend_from_slice(&bytes);
            if enough(&headers, &body) {
                break;
            }
        }
        let body = match decoded(&headers, body, MOST_BYTES) {
            Ok(body) => body,
            // The status says more.
            Err(undecoded) if !status.is_success() => undecoded.beginning,
            Err(undecoded) => return Err(CallFailure::new(FailureKind::BadResponse, undecoded.message, None)),
        };
        Ok(Answered { status, headers, body })
    }

    fn broken(&self, error: &reqwest::Error) -> CallFailure {
        if error.is_timeout() {
            return late(self.timeout);
        }
        // A request that cannot be built (a wrong URL) cannot be built by a retry.
        let kind = if error.is_builder() { FailureKind::Refused } else { FailureKind::Connection };
        let what = if error.is_connect() { "it cannot be reached" } else { "the connection to it broke" };
        CallFailure::new(kind, format!("{what}: {}", root_cause(error)), None)
    }

    /// Returns the answer, or what its error status means. A key that is missing or refused, an account without credit and a
    /// redirect are mistakes of the pipeline: they fail the row, and the model is not told.
    pub(super) fn accepted(&self, answered: Answered) -> Result<Answered, CallFailure> {
        let status = answered.status;
        if status.is_success() {
            return Ok(answered);
        }
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => FailureKind::RateLimited,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => FailureKind::Timeout,
            _ if status.is_server_error() => FailureKind::ServerError,
            _ => FailureKind::Refused,
        };
        let mine = [StatusCode::UNAUTHORIZED, StatusCode::PAYMENT_REQUIRED, StatusCode::PROXY_AUTHENTICATION_REQUIRED];
        let hint = if status.is_redirection() { ", and redirects are not followed: write the final URL" } else { "" };
        let said = Words::of(&answered.headers, &answered.body, &self.redactor).ending();
        let same_for_all = status.is_redirection() || mine.contains(&status);
        // Otherwise it is what the model asked for that was refused.
        let of_call = kind == FailureKind::Refused && !same_for_all;
        Err(CallFailure {
            status: Some(status.as_u16()),
            retry_after: retry_after(&answered.headers),
            same_for_all,
            counts: if of_call { Counts::Never } else { Counts::InARow },
            ..CallFailure::new(kind, format!("it answered {status}{hint}{said}"), None)
        })
    }
}

/// The failure of a service that did not answer in time.
pub(super) fn late(timeout: Duration) -> CallFailure {
    let message = format!("it gave no answer within {} s (`timeout_seconds`)", timeout.as_secs_f64());
    CallFailure::new(FailureKind::Timeout, message, None)
}

/// The beginning of a text, on one line.
pub(super) fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().take(DETAIL_CHARS).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}
