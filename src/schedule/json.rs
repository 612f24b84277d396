//! A schedule as JSON: for `schedule list --json` and for the page.

use searchmill_engine::{Cadence, Schedules};
use serde_json::{Value, json};

use super::now;

/// Describes a schedule; `None` if it was never served, or its state is damaged.
pub(crate) fn schedule_json(schedules: &Schedules, name: &str) -> Option<Value> {
    let state = schedules.state(name)?;
    let served = schedules.is_served(name);
    let next = Cadence::recall(&state.cron, &state.timezone).and_then(|cadence| cadence.after(now()));
    Some(json!({
        "name": name,
        "file": state.file,
        "cron": state.cron,
        "timezone": state.timezone,
        "served": served,
        // A killed daemon leaves its entry in the state: it counts only while the lease is held.
        "daemon": state.daemon.as_ref().filter(|_| served),
        "paused": schedules.switch(name).paused,
        "next": next,
        "running": state.running,
        "waiting": state.waiting.len(),
        "last": state.ended.last(),
        "counts": state.counts,
    }))
}
