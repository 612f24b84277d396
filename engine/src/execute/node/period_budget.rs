//! Budgets of a day and a month: what all runs of the pipeline have spent since midnight, or since the first of the month.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{Datelike, TimeZone, Utc};
use chrono_tz::Tz;

use crate::endpoint::{PeriodLimits, SpendLedger, Usage};
use crate::execute::settings::clock::unix_time;
use crate::store::{Spending, Store};

/// Interval at which the spending of other runs is read again.
const LOOK: Duration = Duration::from_secs(1);
/// The same interval, as a multiple of the time that reading takes (at least).
const PAUSE: u32 = 20;

/// The spending of a pipeline's runs, and its limits.
#[derive(Debug)]
pub(crate) struct Ledger {
    limits: PeriodLimits,
    zone: Tz,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    spending: Spending,
    /// When the spending of other runs is read again.
    next: Option<Instant>,
}

impl Ledger {
    /// Opens the spending of a pipeline for one of its runs. Days begin at midnight in that time zone.
    pub(crate) fn open(store: &Store, pipeline: &str, run: &str, limits: PeriodLimits, zone: &str) -> Self {
        let state = State { spending: Spending::of(store, pipeline, run), next: None };
        Self { limits, zone: zone.parse().unwrap_or(Tz::UTC), state: Mutex::new(state) }
    }
}

impl SpendLedger for Ledger {
    fn add(&self, usage: &Usage) -> Result<(), String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.spending.add(unix_time(), usage).map_err(|error| error.to_string())
    }

    fn used_up(&self) -> Result<Option<String>, String> {
        let PeriodLimits { per_day, per_month } = self.limits;
        if per_day.is_none() && per_month.is_none() {
            return Ok(None);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = unix_time();
        let begun = Instant::now();
        if state.next.is_none_or(|next| begun >= next) {
            // A month contains today.
            let first = start(now, self.zone, per_month.is_some());
            state.spending.look(first).map_err(|error| error.to_string())?;
            state.next = Some(Instant::now() + LOOK.max(begun.elapsed() * PAUSE));
        }
        for (limits, month, words) in [(per_day, false, "today"), (per_month, true, "this month")] {
            let Some(limits) = limits else { continue };
            let spent = state.spending.since(start(now, self.zone, month));
            if let Some(limit) = limits.used_up(&spent) {
                return Ok(Some(format!("{limit} {words}")));
            }
        }
        Ok(None)
    }
}

/// Returns the start of the day, or of the month, that contains a time.
fn start(now: f64, zone: Tz, month: bool) -> f64 {
    let Some(time) = Utc.timestamp_opt(now as i64, 0).single() else { return 0.0 };
    let today = time.with_timezone(&zone).date_naive();
    let Some(date) = (if month { today.with_day(1) } else { Some(today) }) else { return 0.0 };
    for hour in 0..4 {
        // Where summer time begins at midnight, the day begins an hour later.
        if let Some(time) = date.and_hms_opt(hour, 0, 0)
            && let Some(start) = zone.from_local_datetime(&time).earliest()
        {
            return start.timestamp() as f64;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> f64 {
        chrono::DateTime::parse_from_rfc3339(text).unwrap().timestamp() as f64
    }

    #[test]
    fn days_and_months_begin_at_midnight_where_the_schedule_is() {
        let (now, kolkata) = (at("2026-11-20T20:00:00Z"), chrono_tz::Asia::Kolkata);
        assert_eq!(start(now, Tz::UTC, false), at("2026-11-20T00:00:00Z"));
        assert_eq!(start(now, kolkata, false), at("2026-11-21T00:00:00+05:30"));
        assert_eq!(start(now, kolkata, true), at("2026-11-01T00:00:00+05:30"));
        let beirut = chrono_tz::Asia::Beirut;
        assert_eq!(start(at("2026-03-29T10:00:00Z"), beirut, false), at("2026-03-29T01:00:00+03:00"));
    }
}
