//! One step of a schedule: which ticks have arrived, which of them are late, and what follows from them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::health::note;
use super::notice::Notice;
use super::state::{Cause, Ended, Ending, Outcome, Process, Running, Stage, State, StopReason, Ticket};
use crate::fingerprint::hash_bytes;
use crate::spec::{Catchup, Overlap, Schedule, Time};

/// Limit of ticks inspected one by one after a long absence, and of queued runs.
const MOST: usize = 1000;
/// A tick seen later than this is missed: the machine was suspended.
const LATE: Duration = Duration::from_mins(1);
/// Limit of parallel runs under `overlap: allow`.
const MOST_AT_ONCE: usize = 16;
/// Time from the second signal to the kill.
const BEFORE_KILL: Duration = Duration::from_secs(5);
/// Time from the first to the second signal if the daemon stops immediately.
const AT_ONCE: Duration = Duration::from_secs(1);
/// If the clock is set back by less than this, the schedule waits.
const WAITED_FOR: Duration = Duration::from_hours(1);

/// Circumstances of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time.
    pub now: Time,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// Whether the daemon is shutting down. Nothing starts then, and ticks are left for the next daemon.
    pub draining: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The daemon starts; `found` describes the runs that an earlier daemon had started.
    Boot {
        /// By ticket.
        found: BTreeMap<u64, Found>,
        /// When the schedule was last resumed after a pause: earlier ticks are not missed.
        resumed: Option<Time>,
    },
    /// Time has passed.
    Wake,
    /// A run's process has started.
    Began(u64, Process),
    /// A run has ended.
    Ended(u64, Ending),
    /// A note was delivered, or all attempts failed.
    Told(u64),
    /// A user requests a run.
    Trigger,
    /// The daemon must stop immediately.
    Stop,
}

/// What became of a run whose daemon was killed.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Still running.
    Alive(Option<Process>),
    /// Ended by itself.
    Ended(Ending),
    /// Never started.
    NeverBegan,
    /// Gone without a record of its end.
    Lost,
}

/// What the daemon must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start a run. The state that contains it must be stored first.
    Start(Ticket),
    /// Send SIGTERM.
    Terminate(u64),
    /// Send SIGKILL to the run and all its descendants.
    Kill(u64),
    /// Log a notice.
    Tell(Notice),
}

/// Ticks that arrived since the last step.
#[derive(Debug, Default, PartialEq)]
struct Arrivals {
    /// Ticks that were due while no daemon ran, oldest first.
    missed: Vec<Time>,
    /// Whether there were earlier missed ticks beyond the limit.
    more: bool,
    /// Due now.
    due: Vec<Time>,
}

struct Step<'a> {
    schedule: &'a Schedule,
    state: &'a mut State,
    moment: Moment,
    actions: Vec<Action>,
}

/// Takes one step and returns the actions.
pub fn step(schedule: &Schedule, state: &mut State, moment: Moment, event: Event) -> Vec<Action> {
    let mut step = Step { schedule, state, moment, actions: Vec::new() };
    step.take(event);
    // After the event: a run that has just ended gets no signal, and its place is free for the next one.
    step.deadlines();
    step.dispatch();
    step.actions
}

/// Returns when the next step is due if nothing happens before.
pub fn next_wake(schedule: &Schedule, state: &State) -> Option<Time> {
    let tick = pending(schedule, state).map(|tick| jittered(schedule, &state.name, tick));
    let deadlines = state.running.iter().filter_map(|running| deadline(schedule, running));
    deadlines.chain(tick).min()
}

/// Returns the next tick that is not accounted for.
fn pending(schedule: &Schedule, state: &State) -> Option<Time> {
    schedule.cadence.after(state.accounted?)
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

fn deadline(schedule: &Schedule, running: &Running) -> Option<Time> {
    match running.stage {
        Stage::Starting | Stage::Killed { .. } => None,
        Stage::Running => schedule.max_runtime.map(|limit| running.began + limit),
        Stage::Draining { until, .. } | Stage::Stopping { until, .. } => Some(until),
    }
}

impl Step<'_> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Boot { found, resumed } => self.boot(found, resumed),
            Event::Wake => {
                self.recount(None);
                let arrivals = self.arrivals(self.moment.now - LATE);
                self.settle(arrivals);
            }
            Event::Began(id, process) => {
                if let Some(running) = self.running(id) {
                    running.is_up(Some(process));
                }
            }
            Event::Ended(id, ending) => {
                self.end(id, None, ending);
            }
            Event::Trigger => {
                let now = self.moment.now;
                // Ticks are whole seconds, and a ticket has a tick.
                let second = now - Duration::from_nanos(u64::from(now.timestamp_subsec_nanos()));
                self.admit(second, Cause::Trigger);
            }
            Event::Told(id) => self.state.notes.retain(|note| note.id != id),
            Event::Stop => self.stop_all(StopReason::Shutdown, AT_ONCE),
        }
    }

    fn running(&mut self, id: u64) -> Option<&mut Running> {
        self.state.running.iter_mut().find(|running| running.ticket.id == id)
    }

    fn tell(&mut self, notice: Notice) {
        self.actions.push(Action::Tell(notice));
    }

    fn boot(&mut self, mut found: BTreeMap<u64, Found>, resumed: Option<Time>) {
        let ids: Vec<u64> = self.state.running.iter().map(|running| running.ticket.id).collect();
        let mut lost = Vec::new();
        for id in ids {
            match found.remove(&id).unwrap_or(Found::Lost) {
                Found::Alive(process) => {
                    let Some(running) = self.running(id) else { continue };
                    running.is_up(process);
                    let tick = running.ticket.tick;
                    self.tell(Notice::Adopted { id, tick });
                }
                Found::Ended(ending) => {
                    self.end(id, None, ending);
                }
                Found::NeverBegan => {
                    let Some(index) = self.state.running.iter().position(|running| running.ticket.id == id) else {
                        continue;
                    };
                    // It was stored but never started: it returns to the front of the queue.
                    let running = self.state.running.remove(index);
                    self.state.counts.started -= 1;
                    self.state.waiting.insert(0, running.ticket);
                }
                Found::Lost => lost.extend(self.end(id, Some(Outcome::Lost), Ending::default())),
            }
        }
        self.recount(resumed);
        let mut arrivals = self.arrivals(self.moment.now);
        // A tick whose run was lost counts as missed, like a tick whose run never started.
        for ticket in lost {
            if ticket.cause != Cause::Trigger {
                arrivals.missed.push(ticket.tick);
            }
        }
        arrivals.missed.sort_unstable();
        self.settle(arrivals);
    }

    /// Determines from when ticks count: new, changed and resumed schedules start now.
    fn recount(&mut self, resumed: Option<Time>) {
        let (cron, timezone) = (self.schedule.cadence.cron(), self.schedule.cadence.timezone());
        let now = self.moment.now;
        let state = &mut *self.state;
        // Ticks of another cron line say nothing about which of this one were missed.
        let known = state.cron == cron && state.timezone == timezone;
        let changed = !known && state.accounted.is_some();
        let accounted = state.accounted.filter(|_| known).unwrap_or(now);
        // Ticks during a pause are not missed.
        state.accounted = Some(accounted.max(resumed.unwrap_or(accounted)));
        cron.clone_into(&mut state.cron);
        timezone.clone_into(&mut state.timezone);
        if changed {
            self.tell(Notice::Changed { cron: cron.to_owned(), timezone: timezone.to_owned() });
        }
    }

    /// Takes the ticks due by now and accounts for them. Ticks due before `late` are missed.
    fn arrivals(&mut self, late: Time) -> Arrivals {
        let now = self.moment.now;
        // Ticks are left for the next daemon.
        if self.moment.draining {
            return Arrivals::default();
        }
        if let Some(accounted) = self.state.accounted
            && accounted > now + WAITED_FOR
        {
            self.state.accounted = Some(now);
            self.tell(Notice::ClockSetBack { accounted });
        }
        let (schedule, state) = (self.schedule, &mut *self.state);
        let mut arrivals = Arrivals::default();
        // Ticks late with any jitter are collected backwards from the newest one, however long the absence.
        let surely_late = late - schedule.jitter;
        if let (Some(from), Some(first)) = (state.accounted, pending(schedule, state))
            && first < surely_late
        {
            let newest = schedule.cadence.before(surely_late);
            let backwards = std::iter::successors(newest, |tick| schedule.cadence.before(*tick));
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

    fn settle(&mut self, arrivals: Arrivals) {
        let Arrivals { missed, more, due } = arrivals;
        if self.moment.paused {
            self.state.counts.paused += (missed.len() + due.len()) as u64;
            for tick in due {
                self.tell(Notice::Paused { tick });
            }
            return;
        }
        self.make_up(&missed, more);
        for tick in due {
            self.admit(tick, Cause::Tick);
        }
    }

    fn make_up(&mut self, missed: &[Time], more: bool) {
        let (Some(first), Some(last)) = (missed.first().copied(), missed.last().copied()) else { return };
        let room = MOST.saturating_sub(self.state.waiting.len());
        let wanted = match self.schedule.catchup {
            Catchup::None => 0,
            Catchup::Latest => 1,
            Catchup::All => missed.len().min(room),
        };
        if self.schedule.catchup == Catchup::Latest {
            // One run makes up everything missed, including earlier absences.
            self.state.waiting.retain(|ticket| ticket.cause != Cause::Catchup);
        }
        for tick in &missed[missed.len() - wanted..] {
            let ticket = self.state.ticket(*tick, Cause::Catchup);
            self.state.waiting.push(ticket);
        }
        self.state.counts.missed += (missed.len() - wanted) as u64;
        self.tell(Notice::Missed { ticks: missed.len(), more, first, last, made_up: wanted });
    }

    /// Admits a due tick or a requested run, depending on active runs.
    fn admit(&mut self, tick: Time, cause: Cause) {
        let busy = !self.state.running.is_empty() || !self.state.waiting.is_empty();
        let overlap = self.schedule.overlap;
        let full = self.state.waiting.len() >= MOST;
        // A run that a user asked for is never skipped.
        if busy && cause == Cause::Tick && (overlap == Overlap::Skip || full) {
            self.state.counts.skipped += 1;
            self.tell(Notice::Skipped { tick });
            return;
        }
        if overlap == Overlap::Replace {
            let before = self.state.waiting.len();
            self.state.waiting.retain(|ticket| ticket.cause != Cause::Tick);
            self.state.counts.skipped += (before - self.state.waiting.len()) as u64;
            self.stop_all(StopReason::Replaced, self.schedule.grace);
        }
        let ticket = self.state.ticket(tick, cause);
        let id = ticket.id;
        self.state.waiting.push(ticket);
        let waits = busy && (overlap != Overlap::Allow || self.state.running.len() >= MOST_AT_ONCE);
        if waits {
            let waiting = self.state.waiting.len();
            self.tell(Notice::Queued { id, tick, waiting });
        }
    }

    /// Sends the first stop signal to all runs without one. If the daemon stops, shortens the deadlines of the others.
    fn stop_all(&mut self, reason: StopReason, grace: Duration) {
        let until = self.moment.now + grace;
        let mut signalled = Vec::new();
        for running in &mut self.state.running {
            let id = running.ticket.id;
            match &mut running.stage {
                Stage::Draining { until: later, .. } if reason == StopReason::Shutdown => *later = until.min(*later),
                Stage::Draining { .. } | Stage::Stopping { .. } | Stage::Killed { .. } => {}
                stage => {
                    *stage = Stage::Draining { reason, until };
                    signalled.push(id);
                }
            }
        }
        for id in signalled {
            self.actions.push(Action::Terminate(id));
            self.tell(Notice::StoppingRun { id, reason, signal: 1 });
        }
    }

    /// Advances runs past their deadlines.
    fn deadlines(&mut self) {
        let now = self.moment.now;
        let schedule = self.schedule;
        let mut signalled = Vec::new();
        for running in &mut self.state.running {
            if deadline(schedule, running).is_none_or(|deadline| deadline > now) {
                continue;
            }
            let (next, reason, signal) = match running.stage {
                Stage::Draining { reason, .. } => (Stage::Stopping { reason, until: now + BEFORE_KILL }, reason, 2),
                Stage::Stopping { reason, .. } => (Stage::Killed { reason }, reason, 3),
                _ => {
                    let reason = StopReason::Overran;
                    (Stage::Draining { reason, until: now + schedule.grace }, reason, 1)
                }
            };
            running.stage = next;
            signalled.push((running.ticket.id, reason, signal));
        }
        for (id, reason, signal) in signalled {
            self.actions.push(if signal == 3 { Action::Kill(id) } else { Action::Terminate(id) });
            self.tell(Notice::StoppingRun { id, reason, signal });
        }
    }

    /// Starts the runs that may start.
    fn dispatch(&mut self) {
        // A waiting run that may not start does not hold up those behind it.
        while let Some(index) = self.state.waiting.iter().position(|ticket| self.may_start(ticket)) {
            let ticket = self.state.waiting.remove(index);
            self.state.counts.started += 1;
            let (began, stage) = (self.moment.now, Stage::Starting);
            self.state.running.push(Running { ticket: ticket.clone(), began, process: None, stage });
            let Ticket { id, tick, cause } = ticket;
            self.tell(Notice::Starting { id, tick, cause });
            self.actions.push(Action::Start(ticket));
        }
    }

    fn may_start(&self, ticket: &Ticket) -> bool {
        // Missed ticks are made up one after another even under `allow`.
        let beside = self.schedule.overlap == Overlap::Allow && ticket.cause != Cause::Catchup;
        let room = self.state.running.len() < if beside { MOST_AT_ONCE } else { 1 };
        // A pause stops the schedule, not the user.
        let held = self.moment.paused && ticket.cause != Cause::Trigger;
        room && !held && !self.moment.draining
    }

    fn end(&mut self, id: u64, outcome: Option<Outcome>, ending: Ending) -> Option<Ticket> {
        let place = self.state.running.iter().position(|running| running.ticket.id == id)?;
        let running = self.state.running.remove(place);
        let outcome = match (outcome, ending.exit, running.stop_reason()) {
            (Some(outcome), ..) => outcome,
            // Told to stop when it had already finished its work.
            (None, Some(0), _) => Outcome::Succeeded,
            (None, _, Some(StopReason::Overran)) => Outcome::Overran,
            (None, _, Some(StopReason::Replaced)) => Outcome::Replaced,
            (None, _, Some(StopReason::Shutdown)) => Outcome::Stopped,
            (None, Some(3), None) => Outcome::DeadLetters,
            (None, Some(4), None) => Outcome::BudgetSpent,
            (None, _, None) => Outcome::Failed,
        };
        let (ended, tick) = (self.moment.now, running.ticket.tick);
        let Ending { exit, run, cached, finished, calls, message, .. } = ending.clone();
        let seconds = (ended - running.began).num_seconds();
        self.tell(Notice::Ended { id, tick, outcome, exit, run, cached, finished, calls, seconds, message });
        let (ticket, began) = (running.ticket.clone(), running.began);
        self.state.remember(Ended { ticket, began, ended, outcome, ending });
        // The note compares this run with those before it, so it is made once this one is remembered.
        if let Some(note) = note(self.state)
            && self.schedule.notify.iter().any(|notify| notify.on.contains(&note.occasion))
        {
            self.state.notes.push(note);
        }
        Some(running.ticket)
    }
}
