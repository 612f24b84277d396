//! How the calls of one node to one endpoint go: the first one goes alone, and several in a row that fail end them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::failure::{CallFailure, Counts, FailureKind};
use crate::error::OperatorError;

/// How long the other calls wait for the first one (at most): an endpoint that refuses does so soon.
const ALONE: Duration = Duration::from_secs(5);

/// The calls of one node to one endpoint, by number in the order in which they began.
///
/// Calls that fail often take longer than those that are answered. A failure therefore counts only if no call that began
/// after it was answered, and calls are in a row if they began one after the other.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// When the first call began.
    first: Option<Instant>,
    /// Whether an attempt has ended: the other calls need not wait.
    is_open: bool,
    /// Number of the last call that began.
    begun: u64,
    /// Number of the last of them that was answered (0: none was).
    answered: u64,
    /// The calls that began later: how each failed; `None` while it is in progress.
    later: BTreeMap<u64, Option<Failed>>,
    /// Why no more calls are made.
    closed: Option<OperatorError>,
}

/// How a call failed.
#[derive(Debug)]
struct Failed {
    kind: FailureKind,
    label: String,
}

impl Standing {
    /// Begins a call and returns its number, or returns how long it waits for the first one.
    pub(crate) fn enter(&mut self, now: Instant) -> Result<u64, Duration> {
        if let Some(first) = self.first
            && !self.is_open
        {
            let wait = (first + ALONE).saturating_duration_since(now);
            if !wait.is_zero() {
                return Err(wait);
            }
        }
        self.first.get_or_insert(now);
        self.begun += 1;
        self.later.insert(self.begun, None);
        Ok(self.begun)
    }

    /// Lets the other calls begin.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
    }

    /// Records that a call was answered.
    pub(crate) fn answered(&mut self, number: u64) {
        self.open();
        if number > self.answered {
            self.answered = number;
            // Failures of calls that began before this one count no more.
            self.later = self.later.split_off(&(number + 1));
        } else {
            self.later.remove(&number);
        }
    }

    /// Records that a call of the endpoint `name` failed for good. After `most` in a row (0: never), no more are made.
    pub(crate) fn failed(&mut self, name: &str, number: u64, failure: &CallFailure, most: u32) {
        self.open();
        // Absent if a call that began later was answered.
        let counts = self.later.remove(&number).is_some() && failure.counts_towards_a_stop();
        // The first reason stays.
        if !counts || self.closed.is_some() {
            return;
        }
        if failure.counts == Counts::AtFirst && self.answered == 0 {
            self.close(format!("{name} refused the first call: {}", failure.message), failure);
            return;
        }
        self.later.insert(number, Some(Failed { kind: failure.kind, label: failure.label() }));
        // A call in progress ends the row on either side: it may yet be answered.
        let before = self.later.range(..number).rev().map_while(|(_, failed)| failed.as_ref());
        let after = self.later.range(number..).map_while(|(_, failed)| failed.as_ref());
        let row: Vec<&Failed> = before.chain(after).take(most as usize).collect();
        if most > 0 && row.len() == most as usize {
            let what = in_a_row(name, &row);
            self.close(format!("{what}: {}", failure.message), failure);
        }
    }

    fn close(&mut self, message: String, failure: &CallFailure) {
        self.closed = Some(OperatorError { help: failure.help.clone(), ..OperatorError::machine(message) });
    }

    /// Forgets a call that ended without an outcome.
    pub(crate) fn leave(&mut self, number: u64) {
        self.open();
        if matches!(self.later.get(&number), Some(None)) {
            self.later.remove(&number);
        }
    }

    /// Returns why no more calls are made, if none are.
    pub(crate) fn closed(&self) -> Option<OperatorError> {
        self.closed.clone()
    }
}

/// Says how these calls failed.
fn in_a_row(name: &str, row: &[&Failed]) -> String {
    let count = row.len();
    if row.iter().all(|failed| failed.kind == FailureKind::Connection) {
        return format!("{name} cannot be reached, {count} calls in a row were given up");
    }
    if row.iter().all(|failed| failed.kind == FailureKind::Refused) {
        return format!("{name} refused {count} calls in a row");
    }
    let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
    for failed in row {
        *labels.entry(&failed.label).or_default() += 1;
    }
    let labels: Vec<String> = labels.into_iter().map(|(label, count)| format!("{count} × {label}")).collect();
    format!("{count} calls in a row to {name} failed ({})", labels.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 8;

    fn failure(kind: FailureKind, counts: Counts) -> CallFailure {
        CallFailure { counts, help: Some("mend it".to_owned()), ..CallFailure::new(kind, "no".to_owned(), None) }
    }

    /// Begins calls once the first one is over.
    fn begin(standing: &mut Standing, calls: usize) -> Vec<u64> {
        standing.open();
        (0..calls).map(|_| standing.enter(Instant::now()).expect("it may begin")).collect()
    }

    fn fail(standing: &mut Standing, number: u64, kind: FailureKind) {
        standing.failed("http://h/v1", number, &failure(kind, Counts::InARow), MOST);
    }

    #[test]
    fn the_first_call_goes_alone_for_a_while() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        assert_eq!(standing.enter(now), Ok(1));
        assert!(standing.enter(now + Duration::from_secs(1)).is_err_and(|wait| wait <= ALONE));
        assert_eq!(standing.enter(now + ALONE), Ok(2), "it takes long");
        let mut standing = Standing::default();
        assert_eq!(standing.enter(now), Ok(1));
        standing.leave(1);
        assert_eq!(standing.enter(now), Ok(2), "it was never made");
    }

    #[test]
    fn every_class_of_failure_counts() {
        for kind in [
            FailureKind::Timeout,
            FailureKind::RateLimited,
            FailureKind::ServerError,
            FailureKind::Connection,
            FailureKind::Refused,
            FailureKind::BadResponse,
        ] {
            let mut standing = Standing::default();
            for number in begin(&mut standing, MOST as usize) {
                assert_eq!(standing.closed().map(|error| error.message), None, "{kind:?}");
                fail(&mut standing, number, kind);
            }
            let error = standing.closed().expect("closed");
            assert!(error.message.contains("http://h/v1") && error.message.ends_with(": no"), "{}", error.message);
            assert_eq!(error.help.as_deref(), Some("mend it"));
        }
    }

    #[test]
    fn what_is_of_one_row_or_of_no_call_never_counts() {
        let mut standing = Standing::default();
        for number in begin(&mut standing, 3 * MOST as usize) {
            let (kind, counts) = match number % 3 {
                0 => (FailureKind::Refused, Counts::Never),
                1 => (FailureKind::Cancelled, Counts::InARow),
                _ => (FailureKind::Data, Counts::InARow),
            };
            standing.failed("e", number, &failure(kind, counts), MOST);
        }
        assert!(standing.closed().is_none());
    }

    #[test]
    fn nothing_ends_calls_that_are_not_to_be_ended() {
        let mut standing = Standing::default();
        for number in begin(&mut standing, 4 * MOST as usize) {
            standing.failed("e", number, &failure(FailureKind::ServerError, Counts::InARow), 0);
        }
        assert!(standing.closed().is_none());
    }

    #[test]
    fn a_reason_that_all_calls_share_ends_them_at_the_first() {
        let mut standing = Standing::default();
        let calls = begin(&mut standing, 2);
        let missing = failure(FailureKind::Refused, Counts::AtFirst);
        standing.failed("e", calls[0], &missing, MOST);
        assert!(standing.closed().is_some_and(|error| error.message == "e refused the first call: no"));
        let mut standing = Standing::default();
        let calls = begin(&mut standing, 2);
        standing.answered(calls[0]);
        standing.failed("e", calls[1], &missing, MOST);
        assert!(standing.closed().is_none(), "one was answered");
    }

    #[test]
    fn an_answer_in_between_begins_the_row_anew_in_the_order_in_which_calls_began() {
        let mut standing = Standing::default();
        let calls = begin(&mut standing, 20);
        standing.answered(calls[12]);
        for number in &calls[..12] {
            fail(&mut standing, *number, FailureKind::Timeout);
        }
        assert!(standing.closed().is_none(), "a call that began after them was answered");
        for number in &calls[13..19] {
            fail(&mut standing, *number, FailureKind::ServerError);
        }
        assert!(standing.closed().is_none());
        let more = begin(&mut standing, 2);
        fail(&mut standing, more[0], FailureKind::Timeout);
        fail(&mut standing, more[1], FailureKind::Timeout);
        assert!(standing.closed().is_none(), "one that began between them is in progress");
        fail(&mut standing, calls[19], FailureKind::Timeout);
        let said = standing.closed().expect("nine in a row").message;
        assert_eq!(said, "8 calls in a row to http://h/v1 failed (6 × server_error, 2 × timeout): no");
    }
}
