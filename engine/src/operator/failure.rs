//! Failed rows and their reasons.

use super::money::Usage;

/// The kind of a row's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No answer in time.
    Timeout,
    /// Status 429 until attempts ran out.
    RateLimited,
    /// Status 5xx until attempts ran out.
    ServerError,
    /// No connection, or the connection broke.
    Connection,
    /// Status 4xx: a retry will not help.
    Refused,
    /// The answer does not follow the API.
    BadResponse,
    /// The row itself is unusable.
    Data,
    /// The run was stopped; the row is neither done nor failed.
    Cancelled,
    /// The budget of the run is used up; the row is neither done nor failed.
    Budget,
}

impl FailureKind {
    /// Returns the name in `rejects` rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::RateLimited => "rate_limited",
            Self::ServerError => "server_error",
            Self::Connection => "connection",
            Self::Refused => "refused",
            Self::BadResponse => "bad_response",
            Self::Data => "data",
            Self::Cancelled => "cancelled",
            Self::Budget => "budget",
        }
    }

    /// Whether the row is left for a later run, neither done nor failed.
    #[must_use]
    pub fn is_postponed(self) -> bool {
        matches!(self, Self::Cancelled | Self::Budget)
    }
}

/// A row that failed.
#[derive(Clone, Debug)]
pub struct RowFailure {
    /// Kind of failure.
    pub kind: FailureKind,
    /// Error message.
    pub message: String,
    /// Number of attempts.
    pub attempts: u32,
    /// The last response body, shortened.
    pub detail: Option<String>,
    /// Usage of the failed attempts.
    pub usage: Usage,
}

impl RowFailure {
    /// Creates a failure at the first attempt.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), attempts: 1, detail: None, usage: Usage::default() }
    }
}
