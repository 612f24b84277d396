//! Sends one request to the server, and classifies failures: what failed, and whether a retry makes sense.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Response, StatusCode};
use searchmill_engine::operator::{
    Attempt, CallFailure, Context, FailureKind, OperatorError, Prices, Redactor, root_cause,
};

use super::super::{Api, EndpointParams};
use super::kept::Raw;
use crate::content_encoding::{Undecoded, decoded};
use crate::retry_after::retry_after;

/// Maximum length of a response in bytes, streamed or not.
const MOST_BYTES: usize = 32 << 20;

/// Time after the end mark of a stream in which the server may end the response.
const AFTER_THE_END: Duration = Duration::from_secs(1);

/// Maximum number of bytes read from an error's body.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// Maximum length of a response stored with a failure, in characters.
const DETAIL_CHARS: usize = 500;

/// Address and settings of the server's requests.
pub(super) struct Exchange {
    url: String,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    /// Whether answers are streamed.
    pub(super) stream: bool,
    pub(super) prices: Prices,
}

impl Exchange {
    /// Resolves the secret.
    ///
    /// # Errors
    /// If the key is unknown or contains characters not allowed in a header.
    pub(super) fn open(params: &EndpointParams, context: &Context) -> Result<Self, OperatorError> {
        let api_key = params.api_key.as_ref().map(|secret| context.secret(secret)).transpose()?;
        Ok(Self {
            url: completions_url(&params.base_url, params.api),
            authorization: api_key.as_deref().map(bearer).transpose()?,
            timeout: Duration::from_secs_f64(params.timeout_seconds),
            stream: params.stream,
            prices: params.prices.clone().unwrap_or_default(),
        })
    }

    /// Sends the request once. Returns the response as it came.
    pub(super) async fn attempt(&self, body: Bytes, context: &Context, attempt: &Attempt) -> Result<Raw, CallFailure> {
        self.send(body, context, attempt).await.map_err(|failure| told(failure, context.redactor()))
    }

    async fn send(&self, body: Bytes, context: &Context, attempt: &Attempt) -> Result<Raw, CallFailure> {
        let mut request = context.http().post(&self.url).timeout(self.timeout).body(body);
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        attempt.heard();
        let status = response.status();
        if !status.is_success() {
            return Err(self.refused(status, response).await);
        }
        let headers = response.headers().clone();
        let (body, broken) = self.body(response, attempt).await?;
        let content_type = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
        let raw = match (decoded(&headers, body, MOST_BYTES), &broken) {
            (Ok(body), _) => Raw { content_type, body },
            (Err(_), Some(failure)) => return Err(failure.clone()),
            (Err(Undecoded { message, beginning }), None) => return Err(bad_response(message, &beginning)),
        };
        // A connection that breaks behind the answer costs nothing.
        match broken.filter(|_| raw.heard().is_err()) {
            Some(failure) => Err(failure),
            None => Ok(raw),
        }
    }

    /// Reads the body, up to the limit. If the connection breaks, returns what came, and the failure.
    async fn body(
        &self,
        mut response: Response,
        attempt: &Attempt,
    ) -> Result<(Vec<u8>, Option<CallFailure>), CallFailure> {
        let mut body = Vec::new();
        loop {
            let chunk = if is_at_the_end(&body) {
                // Some servers send the end mark and keep the connection.
                let ended = tokio::time::timeout(AFTER_THE_END, response.chunk()).await;
                ended.unwrap_or(Ok(None))
            } else {
                response.chunk().await
            };
            let bytes = match chunk {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok((body, None)),
                Err(error) => return Ok((body, Some(self.broken(&error)))),
            };
            attempt.heard();
            if body.len() + bytes.len() > MOST_BYTES {
                let message = format!("the response is longer than {} MiB (limit)", MOST_BYTES >> 20);
                return Err(bad_response(message, &[]));
            }
            body.extend_from_slice(&bytes);
        }
    }

    /// Converts a response with an error status to a failure.
    async fn refused(&self, status: StatusCode, mut response: Response) -> CallFailure {
        let wait = retry_after(response.headers());
        let mut body = Vec::new();
        // Ignores a failed read of the error body: it must not hide the status.
        while let Ok(Some(bytes)) = response.chunk().await {
            body.extend_from_slice(&bytes);
            if body.len() > MOST_ERROR_BYTES {
                break;
            }
        }
        let body = decoded(response.headers(), body, MOST_ERROR_BYTES).unwrap_or_else(|undecoded| undecoded.beginning);
        let moved = if status.is_redirection() { self.moved(&response) } else { String::new() };
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => FailureKind::RateLimited,
            StatusCode::REQUEST_TIMEOUT => FailureKind::Timeout,
            _ if status.is_server_error() => FailureKind::ServerError,
            _ => FailureKind::Refused,
        };
        let detail = String::from_utf8_lossy(&body).into_owned();
        // The key, the address or the model name is wrong: every other call would fail in the same way.
        let same_for_all = status.is_redirection()
            || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND);
        let failure = CallFailure::new(kind, format!("{} answered {status}{moved}", self.url), Some(detail));
        CallFailure { retry_after: wait, same_for_all, ..failure }
    }

    /// Explains a redirect. Redirects are not followed: their host is not the one in the pipeline.
    fn moved(&self, response: &Response) -> String {
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let to = location.and_then(|location| url::Url::parse(&self.url).ok()?.join(location).ok());
        let host = to.and_then(|to| to.host_str().map(|host| format!(" to {host}"))).unwrap_or_default();
        format!(", a redirect{host}, and redirects are not followed: put the final URL into `base_url`")
    }

    /// Classifies a missing or incomplete response.
    fn broken(&self, error: &reqwest::Error) -> CallFailure {
        if error.is_timeout() {
            let seconds = self.timeout.as_secs_f64();
            let message = format!("{} gave no answer within {seconds} s (`timeout_seconds`)", self.url);
            return CallFailure::new(FailureKind::Timeout, message, None);
        }
        let kind = if error.is_builder() { FailureKind::Refused } else { FailureKind::Connection };
        CallFailure::new(kind, format!("the connection to {} failed: {}", self.url, root_cause(error)), None)
    }
}

/// Whether a body ends with the end mark of a stream.
fn is_at_the_end(body: &[u8]) -> bool {
    body.trim_ascii_end().ends_with(b"data: [DONE]")
}

/// Returns a failure as it is told: without secrets, and shortened.
pub(super) fn told(mut failure: CallFailure, redactor: &Redactor) -> CallFailure {
    // Secrets are removed before shortening: a truncated secret would not be recognised.
    redactor.clean_all(std::iter::once(&mut failure.message).chain(&mut failure.detail));
    failure.message = shortened(&failure.message).unwrap_or_default();
    failure.detail = failure.detail.as_deref().and_then(shortened);
    failure
}

pub(super) fn bad_response(message: String, body: &[u8]) -> CallFailure {
    CallFailure::new(FailureKind::BadResponse, message, Some(String::from_utf8_lossy(body).into_owned()))
}

fn bearer(key: &str) -> Result<HeaderValue, OperatorError> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(|_| {
        OperatorError::machine("the API key contains characters that are not allowed in an HTTP header")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The address of the API: below the base URL, or the base URL itself if it is that address already.
fn completions_url(base_url: &str, api: Api) -> String {
    const CHAT: &str = "/chat/completions";
    const PLAIN: &str = "/completions";
    let base = base_url.trim_end_matches('/');
    let root = base.strip_suffix(CHAT).or_else(|| base.strip_suffix(PLAIN)).unwrap_or(base);
    format!("{root}{}", if api == Api::Chat { CHAT } else { PLAIN })
}

fn shortened(text: &str) -> Option<String> {
    let mut kept: String = text.trim().chars().take(DETAIL_CHARS).collect();
    if text.trim().chars().nth(DETAIL_CHARS).is_some() {
        kept.push('…');
    }
    (!kept.is_empty()).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_completed_once() {
        assert_eq!(completions_url("http://h:8000/v1", Api::Chat), "http://h:8000/v1/chat/completions");
        assert_eq!(completions_url("http://h/v1/", Api::Chat), "http://h/v1/chat/completions");
        assert_eq!(completions_url("http://h/v1/chat/completions", Api::Chat), "http://h/v1/chat/completions");
        assert_eq!(completions_url("http://h/v1", Api::Completions), "http://h/v1/completions");
        assert_eq!(completions_url("http://h/v1/chat/completions", Api::Completions), "http://h/v1/completions");
    }

    #[test]
    fn details_are_short_text() {
        assert_eq!(shortened("  "), None);
        assert_eq!(shortened(" oops "), Some("oops".to_owned()));
        let long = shortened(&"é".repeat(900)).expect("a detail");
        assert_eq!(long.chars().count(), DETAIL_CHARS + 1);
        assert!(long.ends_with('…'));
    }
}
