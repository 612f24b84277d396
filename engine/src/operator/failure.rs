//! Failed rows and their reasons.

use searchmill_schemas::{Reject, named};

use super::money::Usage;

named! {
    /// The kind of a row's failure.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FailureKind {
        /// No answer in time.
        Timeout = "timeout",
        /// Status 429 until attempts ran out.
        RateLimited = "rate_limited",
        /// Status 5xx until attempts ran out.
        ServerError = "server_error",
        /// No connection, or the connection broke.
        Connection = "connection",
        /// Status 4xx: a retry will not help.
        Refused = "refused",
        /// The answer does not follow the API.
        BadResponse = "bad_response",
        /// The row itself is unusable.
        Data = "data",
        /// The user's function raised an exception, or ended its process.
        Exception = "exception",
        /// The run was stopped; the row is neither done nor failed.
        Cancelled = "cancelled",
        /// The budget of the run is used up; the row is neither done nor failed.
        Budget = "budget",
    }
}

impl FailureKind {
    /// Whether the row is left for a later run, neither done nor failed.
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
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), attempts: 1, detail: None, usage: Usage::default() }
    }

    /// Returns the row of `rejects`.
    pub(crate) fn reject(self, id: impl Into<String>) -> Reject {
        let attempts = i32::try_from(self.attempts).unwrap_or(i32::MAX);
        Reject {
            id: id.into(),
            kind: self.kind.name().to_owned(),
            message: self.message,
            attempts,
            detail: self.detail,
        }
    }
}
