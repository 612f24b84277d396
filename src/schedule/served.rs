//! A schedule served by the daemon: its lease, its state, and the actions that wait until the state is saved.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use searchmill_engine::schedule::{Action, Event, Found, Moment, Running, State, failing, jittered, next_wake, step};
use searchmill_engine::{Notify, Schedule, ScheduleLease, Schedules, StoreError, Switch, Time};
use serde_json::{Value, json};

use super::child;
use super::process::find;

/// A pipeline with a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Scheduled {
    /// Name of the pipeline and of its schedule.
    pub(crate) name: String,
    /// Path as given.
    pub(crate) file: PathBuf,
    /// When to run.
    pub(crate) schedule: Schedule,
}

/// A schedule served by this daemon.
pub(super) struct Served {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) schedule: Schedule,
    pub(super) state: State,
    pub(super) switch: Switch,
    /// Time and size of the file when it was last read.
    pub(super) stamp: Option<(SystemTime, u64)>,
    /// Requests that were answered but could not be removed from the list.
    pub(super) answered: BTreeSet<PathBuf>,
    _lease: ScheduleLease,
    unsaved: bool,
    pending: VecDeque<Action>,
}

impl Served {
    pub(super) fn new(scheduled: Scheduled, lease: ScheduleLease, schedules: &Schedules) -> Self {
        let Scheduled { name, file, schedule } = scheduled;
        let mut state = schedules.state(&name).unwrap_or_else(|| State::new(&name));
        state.file = file.display().to_string();
        let (switch, stamp) = (schedules.switch(&name), stamp(&file));
        let (answered, pending) = (BTreeSet::new(), VecDeque::new());
        // The first step saves it even if nothing changes: the file and the daemon in it are new.
        let unsaved = true;
        Self { name, file, schedule, state, switch, stamp, answered, _lease: lease, unsaved, pending }
    }

    /// Returns what is left of the runs that an earlier daemon started.
    pub(super) fn found(&self, schedules: &Schedules) -> BTreeMap<u64, Found> {
        self.state.running.iter().map(|running| (running.ticket.id, self.find(running, schedules))).collect()
    }

    fn find(&self, running: &Running, schedules: &Schedules) -> Found {
        let (id, process) = (running.ticket.id, running.process.as_ref());
        // The lock before the record: a run whose record is complete may still hold its process and its log.
        if child::goes_on(schedules, &self.name, id, process) {
            // Found by its log if its daemon was killed before saving it.
            let log = schedules.run_log(&self.name, id);
            return Found::Alive(process.cloned().or_else(|| find(child::LOG, log.to_str()?)));
        }
        match child::recorded(schedules, &self.name, id) {
            Some(ending) => Found::Ended(ending),
            // No process was saved and the log is empty: the run did no work, and can be started again.
            None if process.is_none() && !child::had_begun(schedules, &self.name, id) => Found::NeverBegan,
            None => Found::Lost,
        }
    }

    /// Performs a step; its actions wait until the state is saved.
    pub(super) fn step(&mut self, now: Time, draining: bool, event: Event) {
        // Compared afterwards: most rounds change nothing, and then nothing is written to the store.
        let before = self.state.clone();
        let moment = Moment { now, paused: self.switch.paused, draining };
        self.pending.extend(step(&self.schedule, &mut self.state, moment, event));
        self.unsaved |= self.state != before;
    }

    /// Saves the state if it changed.
    pub(super) fn save(&mut self, schedules: &Schedules) -> Result<(), StoreError> {
        if self.unsaved {
            schedules.keep(&self.state)?;
            self.unsaved = false;
        }
        Ok(())
    }

    pub(super) fn is_saved(&self) -> bool {
        !self.unsaved
    }

    /// Returns the next action, once the state is saved.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        if self.unsaved { None } else { self.pending.pop_front() }
    }

    pub(super) fn next_wake(&self) -> Option<Time> {
        next_wake(&self.schedule, &self.state)
    }

    /// Whether the pipeline's file changed since the last check.
    pub(super) fn file_changed(&mut self) -> bool {
        let stamp = stamp(&self.file);
        // An editor that replaces the file may leave none for a moment: that is no change yet.
        let changed = stamp.is_some() && stamp != self.stamp;
        // Set before the file is read: what is written during the read is a change in the next round.
        self.stamp = stamp;
        changed
    }

    /// Returns the notes to be delivered: ticket, JSON and receivers.
    pub(super) fn notes(&self) -> Vec<(u64, Value, Vec<Notify>)> {
        let mut notes = Vec::with_capacity(self.state.notes.len());
        for note in &self.state.notes {
            let notify = self.schedule.notify.iter();
            let receivers = notify.filter(|notify| notify.on.contains(&note.occasion)).cloned().collect();
            // The list of ended runs is short: an old note may be of one that has left it.
            let ended = self.state.ended.iter().find(|ended| ended.ticket.id == note.id);
            let mut body = ended.map(|ended| json!(ended)).unwrap_or_default();
            body["schedule"] = json!(self.name);
            body["file"] = json!(self.file);
            body["occasion"] = json!(note.occasion);
            body["since"] = json!(note.since);
            notes.push((note.id, body, receivers));
        }
        notes
    }

    /// Builds the entry for `/healthz`, if the schedule fails.
    pub(super) fn failing(&self) -> Option<Value> {
        let mut entry = json!(failing(&self.state.ended)?);
        entry["schedule"] = json!(self.name);
        Some(entry)
    }

    /// Builds the entry for `/status`.
    pub(super) fn status(&self) -> Value {
        let schedule = &self.schedule;
        let tick = self.state.accounted.and_then(|accounted| schedule.cadence.after(accounted));
        json!({
            "name": self.name,
            "file": self.file,
            "cron": schedule.cadence.cron(),
            "timezone": schedule.cadence.timezone(),
            "overlap": schedule.overlap.name(),
            "catchup": schedule.catchup.name(),
            "paused": self.switch.paused,
            "next": tick,
            "next_start": tick.map(|tick| jittered(schedule, &self.name, tick)),
            "running": self.state.running,
            "waiting": self.state.waiting.len(),
            "last": self.state.ended.last(),
            "failing": failing(&self.state.ended),
            "counts": self.state.counts,
        })
    }
}

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
