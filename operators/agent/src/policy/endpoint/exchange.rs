//! Sends one request to the server, and classifies failures: what failed, and whether a retry makes sense.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Response, StatusCode};
use searchmill_engine::operator::{
    Attempt, CallFailure, Context, Counts, FailureKind, OperatorError, Prices, Redactor, root_cause,
};

use super::super::{Api, EndpointParams};
use super::models::Models;
use super::remedy::{of_connection, remedy};
use super::stored_answer::Raw;
use crate::content_encoding::{Undecoded, decoded};
use crate::retry_after::retry_after;
use crate::words::{Words, is_page};

/// Maximum length of a response in bytes, streamed or not.
const MOST_BYTES: usize = 32 << 20;

/// Time after the end mark of a stream in which the server may end the response.
const AFTER_THE_END: Duration = Duration::from_secs(1);

/// Maximum number of bytes read from an error's body.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// Maximum length of a response stored with a failure, in characters.
const DETAIL_CHARS: usize = 500;

/// Maximum length of a message, in characters: it holds the address and the server's words.
const MESSAGE_CHARS: usize = 1000;

/// Address and settings of the server's requests.
pub(super) struct Exchange {
    url: String,
    /// The base URL as given, and the model's name.
    asked: (String, String),
    authorization: Option<HeaderValue>,
    timeout: Duration,
    /// Whether answers are streamed.
    pub(super) stream: bool,
    pub(super) prices: Prices,
    /// The server's models, asked when it refuses a call.
    models: Models,
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
            asked: (api_root(&params.base_url).to_owned(), params.model.clone()),
            authorization: api_key.as_deref().map(bearer).transpose()?,
            timeout: Duration::from_secs_f64(params.timeout_seconds),
            stream: params.stream,
            prices: params.prices.clone().unwrap_or_default(),
            models: Models::default(),
        })
    }

    /// Sends the request once. Returns the response as it came. A failure may still hold secrets.
    pub(super) async fn send(&self, body: Bytes, context: &Context, attempt: &Attempt) -> Result<Raw, CallFailure> {
        let mut request = context.http().post(&self.url).timeout(self.timeout).body(body);
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        attempt.received();
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() {
            return Err(self.refused(status, response, context).await);
        }
        let (body, broken) = self.body(response, attempt).await?;
        let content_type = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
        let raw = match (decoded(&headers, body, MOST_BYTES), &broken) {
            (Ok(body), _) => Raw { content_type, body },
            // A body that was cut cannot be decoded either: the connection is the cause.
            (Err(_), Some(failure)) => return Err(failure.clone()),
            (Err(Undecoded { message, beginning }), None) => return Err(bad_response(message, &beginning)),
        };
        // A connection that breaks behind the answer costs nothing. What cannot be read was paid for, too.
        match broken {
            Some(failure) if raw.heard().is_err() => return Err(failure),
            None if is_page(&headers, &raw.body) => {
                if let Err(message) = raw.heard() {
                    return Err(self.unread(message, &headers, &raw.body, context).await);
                }
            }
            _ => {}
        }
        Ok(raw)
    }

    /// Reads the body, up to the limit. If the connection breaks, returns what came, and the failure.
    async fn body(
        &self,
        mut response: Response,
        attempt: &Attempt,
    ) -> Result<(Vec<u8>, Option<CallFailure>), CallFailure> {
        let mut body = Vec::new();
        loop {
            let chunk = if body.trim_ascii_end().ends_with(b"data: [DONE]") {
                // Some servers send the end mark and keep the connection.
                tokio::time::timeout(AFTER_THE_END, response.chunk()).await.unwrap_or(Ok(None))
            } else {
                response.chunk().await
            };
            let bytes = match chunk {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok((body, None)),
                Err(error) => return Ok((body, Some(self.broken(&error)))),
            };
            attempt.received();
            if body.len() + bytes.len() > MOST_BYTES {
                let message = format!("the response is longer than {} MiB (limit)", MOST_BYTES >> 20);
                return Err(bad_response(message, &[]));
            }
            body.extend_from_slice(&bytes);
        }
    }

    /// Converts a response with an error status to a failure, with the server's words and what to do.
    async fn refused(&self, status: StatusCode, mut response: Response, context: &Context) -> CallFailure {
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
        let words = Words::of(response.headers(), &body, context.redactor());
        let moved = if status.is_redirection() { self.moved(&response) } else { String::new() };
        let mut remedy = remedy(status, &words.text, self.authorization.is_some());
        let kind = match status {
            // What is known to fail again is not retried.
            _ if remedy.counts != Counts::InARow => FailureKind::Refused,
            StatusCode::TOO_MANY_REQUESTS => FailureKind::RateLimited,
            StatusCode::REQUEST_TIMEOUT => FailureKind::Timeout,
            _ if status.is_server_error() => FailureKind::ServerError,
            _ => FailureKind::Refused,
        };
        if remedy.asks_for_models {
            remedy.help = Some(self.listed(&words.text, context).await);
        }
        let body = String::from_utf8_lossy(&body);
        let detail = if words.names.is_empty() { body.into_owned() } else { format!("{}\n{body}", words.names) };
        let message = format!("{} answered {status}{moved}{}", self.url, words.ending());
        CallFailure {
            help: remedy.help,
            status: Some(status.as_u16()),
            retry_after: wait,
            // The key, the address or the model name is wrong: no other arguments would mend it.
            same_for_all: remedy.counts == Counts::AtFirst || status == StatusCode::FORBIDDEN,
            counts: remedy.counts,
            ..CallFailure::new(kind, message, Some(detail))
        }
    }

    /// Converts a page for people to a failure: the address is not that of the API.
    async fn unread(&self, message: String, headers: &HeaderMap, body: &[u8], context: &Context) -> CallFailure {
        let words = Words::of(headers, body, context.redactor());
        let ending = if message.contains(&words.line) { String::new() } else { words.ending() };
        let failure = bad_response(format!("{}: {message}{ending}", self.url), body);
        let help = Some(self.listed(&words.text, context).await);
        let kind = FailureKind::Refused;
        CallFailure { kind, help, same_for_all: true, counts: Counts::AtFirst, ..failure }
    }

    /// Returns what the server's list of models says about the address and the model's name.
    async fn listed(&self, words: &str, context: &Context) -> String {
        let (base, model) = &self.asked;
        self.models.help(context.http(), base, self.authorization.as_ref(), model, words).await
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
            let help = Some("raise `timeout_seconds`, or lower `resources: {concurrency: …}`".to_owned());
            return CallFailure { help, ..CallFailure::new(FailureKind::Timeout, message, None) };
        }
        // A request that cannot be built (a wrong URL) cannot be built by a retry.
        let kind = if error.is_builder() { FailureKind::Refused } else { FailureKind::Connection };
        let cause = root_cause(error);
        let help = Some(of_connection(&cause, !error.is_connect()).to_owned());
        let message = format!("the connection to {} failed: {cause}", self.url);
        CallFailure { help, ..CallFailure::new(kind, message, None) }
    }
}

/// Returns a failure as it is told: without secrets, and shortened.
pub(super) fn redacted(mut failure: CallFailure, redactor: &Redactor) -> CallFailure {
    // Secrets are removed before shortening: a truncated secret would not be recognised.
    let CallFailure { message, help, detail, .. } = &mut failure;
    redactor.clean_all(std::iter::once(message).chain(help).chain(detail));
    failure.message = shortened(&failure.message, MESSAGE_CHARS).unwrap_or_default();
    failure.detail = failure.detail.as_deref().and_then(|detail| shortened(detail, DETAIL_CHARS));
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

const CHAT: &str = "/chat/completions";
const PLAIN: &str = "/completions";

/// The base URL; the address of an operation is one below it.
fn api_root(base_url: &str) -> &str {
    let base = base_url.trim_end_matches('/');
    // The longer one first: `/chat/completions` ends in `/completions`, too.
    base.strip_suffix(CHAT).or_else(|| base.strip_suffix(PLAIN)).unwrap_or(base)
}

/// The address of the API: below the base URL, or the base URL itself if it is that address already.
fn completions_url(base_url: &str, api: Api) -> String {
    format!("{}{}", api_root(base_url), if api == Api::Chat { CHAT } else { PLAIN })
}

fn shortened(text: &str, most: usize) -> Option<String> {
    let mut short: String = text.trim().chars().take(most).collect();
    if text.trim().chars().nth(most).is_some() {
        short.push('…');
    }
    if short.is_empty() { None } else { Some(short) }
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
        assert_eq!(shortened("  ", DETAIL_CHARS), None);
        assert_eq!(shortened(" oops ", DETAIL_CHARS), Some("oops".to_owned()));
        let long = shortened(&"é".repeat(900), DETAIL_CHARS).expect("a detail");
        assert_eq!(long.chars().count(), DETAIL_CHARS + 1);
        assert!(long.ends_with('…'));
    }
}
