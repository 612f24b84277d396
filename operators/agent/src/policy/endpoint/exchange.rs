//! One question to the server and its answer, with repeats: what is worth asking again, and after what wait.

use std::time::Duration;

use bytes::Bytes;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Response, StatusCode};
use searchmill_engine::operator::{Admission, Context, FailureKind, OperatorError, Prices, RowFailure, Usage};

use super::response::{self, Heard, MOST_BYTES};
use super::retry_after::retry_after;
use super::stream::StreamReader;

/// How much of an error's body is read.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// How much of a response is kept with a failure, in characters.
const DETAIL_CHARS: usize = 500;

/// How long a pause lasts before it is asked whether the run was told to stop.
const PAUSE_STEP: Duration = Duration::from_millis(200);

/// How long a pause may go on once the run finishes only what is in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where questions go, and how.
pub(super) struct Exchange {
    url: String,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    stream: bool,
    pub(super) prices: Prices,
}

/// Why there is no answer.
enum Refusal {
    /// It was not asked: the run may not, or is told to stop.
    Postponed(RowFailure),
    /// The attempt failed.
    Trouble(Trouble),
}

/// Why one attempt failed.
struct Trouble {
    kind: FailureKind,
    message: String,
    detail: Option<String>,
    retry_after: Option<Duration>,
    /// Refused for what all calls have in common.
    same_for_all: bool,
}

impl Exchange {
    /// An exchange with the server at that base URL.
    ///
    /// # Errors
    /// When the key cannot stand in a header.
    pub(super) fn new(
        base_url: &str,
        api_key: Option<String>,
        timeout: Duration,
        stream: bool,
    ) -> Result<Self, OperatorError> {
        let authorization = api_key.as_deref().map(bearer).transpose()?;
        Ok(Self { url: completions_url(base_url), authorization, timeout, stream, prices: Prices::default() })
    }

    /// The same at those prices.
    pub(super) fn at(self, prices: Option<&Prices>) -> Self {
        Self { prices: prices.cloned().unwrap_or_default(), ..self }
    }

    /// Asks until there is an answer, asking again cannot help, or attempts run out. Gives how many it took.
    pub(super) async fn ask(
        &self,
        body: Bytes,
        context: &Context,
        chance: &mut ChaCha8Rng,
    ) -> Result<(Heard, u64), RowFailure> {
        let retry = context.retry();
        let mut attempt = 1;
        loop {
            let trouble = match self.attempt(body.clone(), context).await {
                Ok(heard) => return Ok((heard, u64::from(attempt))),
                Err(Refusal::Postponed(mut failure)) => {
                    failure.usage.calls += u64::from(attempt - 1);
                    return Err(failure);
                }
                Err(Refusal::Trouble(trouble)) => trouble,
            };
            if trouble.kind == FailureKind::Refused || attempt >= retry.max_attempts {
                context.give_up_call(trouble.kind, &trouble.message);
                if trouble.same_for_all {
                    context.turned_away(&trouble.message);
                }
                return Err(trouble.failure(attempt));
            }
            attempt += 1;
            let wait = retry.wait(attempt, trouble.retry_after);
            if trouble.kind == FailureKind::RateLimited || trouble.retry_after.is_some() {
                context.pause_endpoint(wait);
            }
            // Up to a quarter longer, so that rows turned away together do not come back together.
            let wait = wait.mul_f64(1.0 + 0.25 * chance.random::<f64>());
            if !pause(wait, context).await {
                let mut failure = trouble.failure(attempt - 1);
                failure.kind = FailureKind::Cancelled;
                return Err(failure);
            }
        }
    }

    /// One attempt, when its turn has come: counted whatever comes of it.
    async fn attempt(&self, body: Bytes, context: &Context) -> Result<Heard, Refusal> {
        let admission = context.admit_call().await.map_err(Refusal::Postponed)?;
        let outcome = self.send(body, context, &admission).await;
        let usage = outcome.as_ref().map_or(Usage { calls: 1, ..Usage::default() }, Heard::usage);
        admission.pay(&usage.at(&self.prices));
        let redactor = context.redactor();
        match outcome {
            Ok(mut heard) => {
                admission.answered();
                heard.clean(redactor);
                Ok(heard)
            }
            Err(mut trouble) => {
                // Struck before they are shortened: a secret that is cut in two is not found.
                redactor.clean_all(std::iter::once(&mut trouble.message).chain(&mut trouble.detail));
                trouble.message = shortened(&trouble.message).unwrap_or_default();
                trouble.detail = trouble.detail.as_deref().and_then(shortened);
                Err(Refusal::Trouble(trouble))
            }
        }
    }

    async fn send(&self, body: Bytes, context: &Context, admission: &Admission) -> Result<Heard, Trouble> {
        let mut request = context.http().post(&self.url).timeout(self.timeout).body(body);
        request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        admission.heard();
        match response.status() {
            status if !status.is_success() => Err(self.refused(status, response).await),
            _ if self.stream => self.read_stream(response, admission).await,
            _ => {
                let body = self.body(response).await?;
                response::read(&body).map_err(|message| Trouble::bad_response(message, &body))
            }
        }
    }

    async fn read_stream(&self, mut response: Response, admission: &Admission) -> Result<Heard, Trouble> {
        let mut reader = StreamReader::default();
        while let Some(bytes) = response.chunk().await.map_err(|error| self.broken(&error))? {
            admission.heard();
            reader.feed(&bytes).map_err(|message| Trouble::bad_response(message, reader.last_line()))?;
        }
        let last = reader.last_line().to_owned();
        reader.finish().map_err(|message| Trouble::bad_response(message, &last))
    }

    /// A whole body, up to the limit.
    async fn body(&self, mut response: Response) -> Result<Vec<u8>, Trouble> {
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(|error| self.broken(&error))? {
            if body.len() + bytes.len() > MOST_BYTES {
                let message = format!("the response is longer than {} MiB (limit)", MOST_BYTES >> 20);
                return Err(Trouble::bad_response(message, &[]));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    /// A response with an error status.
    async fn refused(&self, status: StatusCode, mut response: Response) -> Trouble {
        let wait = retry_after(response.headers());
        let mut body = Vec::new();
        // What cannot be read of an error is left out; a failed read must not hide the status.
        while let Ok(Some(bytes)) = response.chunk().await {
            body.extend_from_slice(&bytes);
            if body.len() > MOST_ERROR_BYTES {
                break;
            }
        }
        let moved = if status.is_redirection() { self.moved(&response) } else { String::new() };
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => FailureKind::RateLimited,
            StatusCode::REQUEST_TIMEOUT => FailureKind::Timeout,
            _ if status.is_server_error() => FailureKind::ServerError,
            _ => FailureKind::Refused,
        };
        let detail = String::from_utf8_lossy(&body).into_owned();
        // The key, the address or the model's name: every other call has the same.
        let same_for_all = status.is_redirection()
            || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND);
        let trouble = Trouble::new(kind, format!("{} answered {status}{moved}", self.url), Some(detail));
        Trouble { retry_after: wait, same_for_all, ..trouble }
    }

    /// What to do about a redirect. It is not followed: the host that it names is not the one that the pipeline names.
    fn moved(&self, response: &Response) -> String {
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let to = location.and_then(|location| url::Url::parse(&self.url).ok()?.join(location).ok());
        let host = to.and_then(|to| to.host_str().map(|host| format!(" to {host}"))).unwrap_or_default();
        format!(", a redirect{host}, and redirects are not followed: put the final URL into `base_url`")
    }

    /// No response, or only a part of one.
    fn broken(&self, error: &reqwest::Error) -> Trouble {
        if error.is_timeout() {
            let seconds = self.timeout.as_secs_f64();
            let message = format!("{} gave no answer within {seconds} s (`timeout_seconds`)", self.url);
            return Trouble::new(FailureKind::Timeout, message, None);
        }
        let kind = if error.is_builder() { FailureKind::Refused } else { FailureKind::Connection };
        Trouble::new(kind, format!("the connection to {} failed: {}", self.url, root_cause(error)), None)
    }
}

impl Trouble {
    fn new(kind: FailureKind, message: String, detail: Option<String>) -> Self {
        Self { kind, message, detail, retry_after: None, same_for_all: false }
    }

    fn bad_response(message: String, body: &[u8]) -> Self {
        Self::new(FailureKind::BadResponse, message, Some(String::from_utf8_lossy(body).into_owned()))
    }

    fn failure(self, attempts: u32) -> RowFailure {
        let usage = Usage { calls: u64::from(attempts), ..Usage::default() };
        RowFailure { kind: self.kind, message: self.message, attempts, detail: self.detail, usage }
    }
}

/// Waits; `false` when the run was told to stop meanwhile. Told to finish what is in flight, it waits for a moment only.
async fn pause(wait: Duration, context: &Context) -> bool {
    let mut left = wait;
    let stops = |left: Duration| context.is_cancelled() || (context.is_draining() && left > PATIENCE);
    while !left.is_zero() && !stops(left) {
        let step = left.min(PAUSE_STEP);
        tokio::time::sleep(step).await;
        left -= step;
    }
    left.is_zero() && !context.is_cancelled()
}

fn bearer(key: &str) -> Result<HeaderValue, OperatorError> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim()))
        .map_err(|_| OperatorError::machine("the API key has characters that an HTTP header cannot carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn completions_url(base_url: &str) -> String {
    const PATH: &str = "/chat/completions";
    let base = base_url.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

fn shortened(text: &str) -> Option<String> {
    let mut kept: String = text.trim().chars().take(DETAIL_CHARS).collect();
    if text.trim().chars().nth(DETAIL_CHARS).is_some() {
        kept.push('…');
    }
    (!kept.is_empty()).then_some(kept)
}

fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_completed_once() {
        assert_eq!(completions_url("http://h:8000/v1"), "http://h:8000/v1/chat/completions");
        assert_eq!(completions_url("http://h/v1/"), "http://h/v1/chat/completions");
        assert_eq!(completions_url("http://h/v1/chat/completions"), "http://h/v1/chat/completions");
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
