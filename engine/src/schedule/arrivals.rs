//! Determines which ticks have arrived since the last step, and which of them are late.

use std::time::Duration;

use super::state::State;
use crate::fingerprint::hash_bytes;
use crate::spec::{Schedule, Time};

/// Limit of ticks inspected one by one after a long absence.
pub(super) const MOST: usize = 1000;

/// Ticks that arrived since the last step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Arrivals {
    /// Ticks that were due while no daemon ran, oldest first.
    pub(super) missed: Vec<Time>,
    /// Whether there were earlier missed ticks beyond the limit.
    pub(super) more: bool,
    /// Due now.
    pub(super) due: Vec<Time>,
}

/// Returns when a tick starts: its time plus a share of the jitter that depends only on the schedule's name and the
/// tick.
pub fn jittered(schedule: &Schedule, name: &str, tick: Time) -> Time {
    let span = u64::try_from(schedule.jitter.as_millis()).unwrap_or(u64::MAX);
    if span == 0 {
        return tick;
    }
    // Schedules with one cron line start at different times, and each tick at the same time after a restart.
    let digest = hash_bytes(format!("{name}\n{}", tick.timestamp()).as_bytes());
    tick + Duration::from_millis(digest.prefix().swap_bytes() % span)
}

/// Returns the next tick that is not accounted for.
pub(super) fn pending(schedule: &Schedule, state: &State) -> Option<Time> {
    schedule.cadence.after(state.accounted?)
}

/// Takes the ticks due by `now` and accounts for them. Ticks due before `late` are missed.
pub(super) fn take(schedule: &Schedule, state: &mut State, now: Time, late: Time) -> Arrivals {
    let mut arrivals = Arrivals::default();
    // Ticks late with any jitter are collected backwards from the newest one, however long the absence.
    let surely_late = late - schedule.jitter;
    if let (Some(from), Some(first)) = (state.accounted, pending(schedule, state))
        && first < surely_late
    {
        let backwards =
            std::iter::successors(schedule.cadence.before(surely_late), |tick| schedule.cadence.before(*tick));
        arrivals.missed = backwards.take_while(|tick| *tick > from).take(MOST).collect();
        arrivals.missed.reverse();
        arrivals.more = arrivals.missed.first().is_some_and(|oldest| *oldest > first);
        state.accounted = arrivals.missed.last().copied().or(state.accounted);
    }
    // The rest in order: a tick never overtakes an earlier one.
    while let Some(tick) = pending(schedule, state) {
        let due = jittered(schedule, &state.name, tick);
        // Later ticks wait for this one, even if their jitter is shorter.
        if due > now {
            break;
        }
        let list = if due < late { &mut arrivals.missed } else { &mut arrivals.due };
        list.push(tick);
        state.accounted = Some(tick);
    }
    arrivals
}
