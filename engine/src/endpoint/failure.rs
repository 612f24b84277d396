//! Failed calls and rows, and their reasons. Counts the attempts of a node that failed, and those that were repeated.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use searchmill_schemas::{Reject, named};
use serde::Serialize;

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

/// How a failed call counts towards the end of all calls to its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counts {
    /// Several in a row end the calls.
    #[default]
    InARow,
    /// All other calls would fail in the same way (no such model, a refused key): if none was answered yet, this one ends
    /// the calls.
    AtFirst,
    /// It is due to this row alone (the length or the content of its text).
    Never,
}

/// Why one attempt at a call failed.
#[derive(Clone, Debug)]
pub struct CallFailure {
    /// Kind of failure. [`FailureKind::Refused`] and failures that postpone the row are not retried.
    pub kind: FailureKind,
    /// Error message, with the endpoint's own words.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
    /// The response body, shortened.
    pub detail: Option<String>,
    /// HTTP status of the response, if there was one.
    pub status: Option<u16>,
    /// Wait requested by the endpoint (`Retry-After`).
    pub retry_after: Option<Duration>,
    /// Refused for a reason that no other arguments mend (API key, address): it is no observation for a model.
    pub same_for_all: bool,
    /// How it counts towards the end of all calls.
    pub counts: Counts,
}

impl CallFailure {
    /// Creates a failure that counts with those before and after it.
    pub fn new(kind: FailureKind, message: String, detail: Option<String>) -> Self {
        let counts = Counts::default();
        Self { kind, message, help: None, detail, status: None, retry_after: None, same_for_all: false, counts }
    }

    /// Returns the status, or the kind of a failure without one.
    pub(crate) fn label(&self) -> String {
        self.status.map_or_else(|| self.kind.name().to_owned(), |status| status.to_string())
    }

    /// Whether it says something about the endpoint, and not about the row or the run.
    pub(super) fn counts_towards_a_stop(&self) -> bool {
        let of_row = matches!(self.kind, FailureKind::Data | FailureKind::Exception);
        self.counts != Counts::Never && !of_row && !self.kind.is_postponed()
    }

    /// Returns the failure of a row after the attempts of this usage.
    pub(crate) fn of_row(self, usage: Usage) -> RowFailure {
        let attempts = u32::try_from(usage.calls).unwrap_or(u32::MAX);
        let message = match self.help {
            Some(help) => format!("{} ({help})", self.message),
            None => self.message,
        };
        RowFailure { kind: self.kind, message, attempts, detail: self.detail, usage }
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
        let (id, kind) = (id.into(), self.kind.name().to_owned());
        let attempts = i32::try_from(self.attempts).unwrap_or(i32::MAX);
        Reject { id, kind, message: self.message, attempts, detail: self.detail }
    }
}

/// Attempts at calls that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FailedCalls {
    /// Attempts without an answer.
    pub failed_calls: u64,
    /// Those of them that asked no model, but a tool, a function or a reranker.
    #[serde(skip_serializing_if = "super::money::is_zero")]
    pub failed_service_calls: u64,
    /// Those of them that were repeated, by HTTP status or kind of failure.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub retried: BTreeMap<String, u64>,
}

impl std::ops::AddAssign<&FailedCalls> for FailedCalls {
    fn add_assign(&mut self, other: &FailedCalls) {
        self.failed_calls += other.failed_calls;
        self.failed_service_calls += other.failed_service_calls;
        for (label, count) in &other.retried {
            *self.retried.entry(label.clone()).or_default() += count;
        }
    }
}

/// The failed attempts of one node so far.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<FailedCalls>);

impl Attempts {
    /// Counts an attempt that failed.
    pub(crate) fn failed(&self, asked_a_model: bool) {
        let mut counts = self.counts();
        counts.failed_calls += 1;
        // Part of the first number, not beside it.
        counts.failed_service_calls += u64::from(!asked_a_model);
    }

    /// Counts an attempt that is repeated because of this failure.
    pub(crate) fn retried(&self, failure: &CallFailure) {
        *self.counts().retried.entry(failure.label()).or_default() += 1;
    }

    /// Returns the counts so far.
    pub(crate) fn so_far(&self) -> FailedCalls {
        self.counts().clone()
    }

    fn counts(&self) -> MutexGuard<'_, FailedCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
