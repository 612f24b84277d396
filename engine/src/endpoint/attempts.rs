//! Counts the attempts of a node that failed, and those that were repeated.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::failure::CallFailure;

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

    fn counts(&self) -> std::sync::MutexGuard<'_, FailedCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
