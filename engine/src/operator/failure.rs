//! Rows that fail, and why.

use super::money::Usage;

/// Why a row failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No answer in time.
    Timeout,
    /// 429 until attempts ran out.
    RateLimited,
    /// 5xx until attempts ran out.
    ServerError,
    /// Could not connect, or the connection broke.
    Connection,
    /// 4xx: asking again will not help.
    Refused,
    /// An answer that is not what the API promises.
    BadResponse,
    /// The row itself is unusable.
    Data,
    /// The run was told to stop; the row is neither done nor failed.
    Cancelled,
    /// The budget of the run is used up; the row is neither done nor failed.
    Budget,
}

impl FailureKind {
    /// The name in `rejects` rows.
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

    /// Is the row left for a later run, neither done nor failed?
    #[must_use]
    pub fn is_postponed(self) -> bool {
        matches!(self, Self::Cancelled | Self::Budget)
    }
}

/// A row that failed.
#[derive(Clone, Debug)]
pub struct RowFailure {
    /// Why.
    pub kind: FailureKind,
    /// In words.
    pub message: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The last response body, shortened.
    pub detail: Option<String>,
    /// What was paid all the same.
    pub usage: Usage,
}

impl RowFailure {
    /// A failure at the first attempt.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), attempts: 1, detail: None, usage: Usage::default() }
    }
}
