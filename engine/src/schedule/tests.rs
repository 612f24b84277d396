//! Tests with a simulated clock and simulated runs and kills; everything else is real.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::diagnostic::SourceMap;
use crate::spec::{Overrides, Schedule, Time, read_text};

fn schedule(written: &str) -> Schedule {
    let text = format!("schedule: {{{written}}}\nnodes: {{a: {{op: x}}}}\n");
    let reading = read_text(Path::new("made-up.yaml"), text, &Overrides::default(), &mut SourceMap::new());
    reading.spec.expect("a pipeline").schedule.expect("a schedule")
}

fn at(text: &str) -> Time {
    text.parse().unwrap()
}

/// A daemon in a simulated world in which runs take a fixed time.
struct Sim {
    schedule: Schedule,
    state: State,
    now: Time,
    paused: bool,
    draining: bool,
    length: Duration,
    /// Runs that ignore the first two signals.
    deaf: bool,
    ends: BTreeMap<u64, Time>,
    log: Vec<String>,
}

impl Sim {
    fn new(written: &str, now: &str, seconds: u64) -> Self {
        let mut daemon = Self {
            schedule: schedule(written),
            state: State::new("nightly"),
            now: at(now),
            paused: false,
            draining: false,
            length: Duration::from_secs(seconds),
            deaf: false,
            ends: BTreeMap::new(),
            log: Vec::new(),
        };
        daemon.feed(Event::Boot { found: BTreeMap::new(), resumed: None });
        daemon
    }

    fn feed(&mut self, event: Event) {
        let moment = Moment { now: self.now, paused: self.paused, draining: self.draining };
        for action in step(&self.schedule, &mut self.state, moment, event) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(ticket) => {
                self.note(&format!("start {}", ticket.tick.format("%dT%H:%M:%S")));
                self.ends.insert(ticket.id, self.now + self.length);
                let process = Process { pid: ticket.id as u32, began: "then".to_owned() };
                self.feed(Event::Began(ticket.id, process));
            }
            Action::Terminate(id) => {
                self.note(&format!("terminate {id}"));
                if !self.deaf {
                    self.ends.insert(id, self.now + Duration::from_secs(1));
                }
            }
            Action::Kill(id) => {
                self.note(&format!("kill {id}"));
                self.ends.insert(id, self.now);
            }
            Action::Tell(notice) => match notice {
                Notice::Skipped { tick } => self.note(&format!("skip {}", tick.format("%H:%M:%S"))),
                Notice::Missed { ticks, made_up, .. } => self.note(&format!("missed {ticks}, made up {made_up}")),
                Notice::Ended { outcome, .. } if outcome != Outcome::Succeeded => self.note(outcome.name()),
                Notice::Changed { .. } => self.note("changed"),
                Notice::ClockSetBack { .. } => self.note("clock set back"),
                _ => {}
            },
        }
    }

    fn note(&mut self, text: &str) {
        self.log.push(format!("{} {text}", self.now.format("%dT%H:%M:%S")));
    }

    /// Advances time.
    fn until(&mut self, end: &str) {
        let end = at(end);
        loop {
            let wake = next_wake(&self.schedule, &self.state).filter(|_| !self.draining);
            let ended = self.ends.iter().min_by_key(|(_, end)| **end).map(|(id, end)| (*end, *id));
            let next = wake.into_iter().chain(ended.map(|(end, _)| end)).min().filter(|next| *next <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            match ended.filter(|(end, _)| *end <= next) {
                Some((_, id)) => {
                    self.ends.remove(&id);
                    let told = self.state.running.iter().any(|run| run.ticket.id == id && run.stop_reason().is_some());
                    let exit = Some(if told { 130 } else { 0 });
                    self.feed(Event::Ended(id, Ending { exit, ..Ending::default() }));
                }
                None => self.feed(Event::Wake),
            }
        }
        self.now = end;
    }

    /// Kills the daemon, and starts a new one later from the stored state.
    fn killed_until(&mut self, later: &str, found: impl Fn(u64) -> Found, resumed: Option<&str>) {
        let disk = serde_json::to_string(&self.state).expect("JSON");
        self.state = serde_json::from_str(&disk).expect("the state comes back");
        self.now = at(later);
        self.draining = false;
        let found: BTreeMap<u64, Found> =
            self.state.running.iter().map(|run| (run.ticket.id, found(run.ticket.id))).collect();
        self.ends.retain(|id, _| matches!(found.get(id), Some(Found::Alive(_))));
        self.feed(Event::Boot { found, resumed: resumed.map(at) });
    }

    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

fn lost(_: u64) -> Found {
    Found::Lost
}

#[test]
fn a_new_schedule_waits_for_its_first_tick() {
    let mut daemon = Sim::new("cron: '0 3 * * *', timezone: Europe/Berlin, catchup: all", "2026-11-20T16:00:00Z", 60);
    assert_eq!(daemon.log(), Vec::<String>::new());
    daemon.until("2026-11-22T12:00:00Z");
    assert_eq!(daemon.log(), ["21T02:00:00 start 21T02:00:00", "22T02:00:00 start 22T02:00:00"]);
    assert_eq!((daemon.state.counts.started, daemon.state.counts.succeeded), (2, 2));
}

#[test]
fn killed_and_restarted_across_a_spring_night_and_a_missed_tick() {
    let line = "cron: '30 2 * * *', timezone: Europe/Berlin, catchup: latest";
    let mut daemon = Sim::new(line, "2026-03-26T12:00:00Z", 600);
    daemon.until("2026-03-28T01:32:00Z");
    // The daemon dies during the night's run, which continues. Clocks go forward on the 29th at 01:00 UTC; 02:30 does
    // not exist that night and becomes 03:00 CEST. A new daemon starts half an hour later.
    daemon.killed_until("2026-03-29T01:30:00Z", |_| Found::Ended(Ending { exit: Some(0), ..Ending::default() }), None);
    assert_eq!(
        daemon.log(),
        [
            "27T01:30:00 start 27T01:30:00",
            "28T01:30:00 start 28T01:30:00",
            "29T01:30:00 missed 1, made up 1",
            "29T01:30:00 start 29T01:00:00",
        ]
    );
    daemon.until("2026-03-31T00:00:00Z");
    assert_eq!(daemon.log(), ["30T00:30:00 start 30T00:30:00"]);
}

#[test]
fn killed_and_restarted_inside_the_repeated_hour_runs_once() {
    // 02:30 CEST is 00:30 UTC; the clocks show 02:30 again at 01:30 UTC.
    let line = "cron: '30 2 * * *', timezone: Europe/Berlin, catchup: all";
    let mut daemon = Sim::new(line, "2026-10-24T12:00:00Z", 60);
    daemon.until("2026-10-25T00:45:00Z");
    assert_eq!(daemon.log(), ["25T00:30:00 start 25T00:30:00"]);
    daemon.killed_until("2026-10-25T01:29:00Z", lost, None);
    daemon.until("2026-10-25T01:31:00Z");
    daemon.killed_until("2026-10-25T02:10:00Z", lost, None);
    daemon.until("2026-10-26T12:00:00Z");
    assert_eq!(daemon.log(), ["26T01:30:00 start 26T01:30:00"]);
    // A cron line with a step follows the wall clock: the repeated hour has twice as many ticks.
    let mut daemon = Sim::new("cron: '*/30 2 * * *', timezone: Europe/Berlin", "2026-10-24T23:00:00Z", 60);
    daemon.until("2026-10-25T12:00:00Z");
    assert_eq!(daemon.state.counts.started, 4);
}

#[test]
fn catchup_says_what_becomes_of_missed_ticks() {
    let absent = |catchup: &str| {
        let line = format!("cron: '0 * * * *', catchup: {catchup}");
        let mut daemon = Sim::new(&line, "2026-11-20T00:30:00Z", 60);
        daemon.killed_until("2026-11-20T03:30:00Z", lost, None);
        daemon.until("2026-11-20T04:10:00Z");
        let missed = daemon.state.counts.missed;
        (daemon.log(), missed)
    };
    assert_eq!(
        absent("none"),
        (vec!["20T03:30:00 missed 3, made up 0".into(), "20T04:00:00 start 20T04:00:00".into()], 3)
    );
    let (log, missed) = absent("latest");
    assert_eq!(log[1..], ["20T03:30:00 start 20T03:00:00", "20T04:00:00 start 20T04:00:00"]);
    assert_eq!(missed, 2);
    let (log, missed) = absent("all");
    let starts = ["20T03:30:00 start 20T01:00:00", "20T03:31:00 start 20T02:00:00", "20T03:32:00 start 20T03:00:00"];
    assert_eq!((&log[1..4], missed), (&starts.map(String::from)[..], 0));
}

#[test]
fn a_long_absence_is_bounded() {
    let line = |catchup: &str| format!("cron: '* * * * * *', catchup: {catchup}");
    for (catchup, waiting) in [("none", 0), ("latest", 0), ("all", 999)] {
        let mut daemon = Sim::new(&line(catchup), "2020-01-01T00:00:00Z", 60);
        daemon.killed_until("2026-11-20T00:00:00Z", lost, None);
        assert_eq!(daemon.state.waiting.len(), waiting, "{catchup}");
        assert_eq!(daemon.state.accounted, Some(at("2026-11-20T00:00:00Z")));
    }
}

#[test]
fn a_run_that_was_cut_off_counts_as_missed() {
    for (catchup, starts) in [("none", 1), ("latest", 2), ("all", 2)] {
        let mut daemon = Sim::new(&format!("cron: '0 3 * * *', catchup: {catchup}"), "2026-11-20T00:00:00Z", 3600);
        daemon.until("2026-11-20T03:10:00Z");
        daemon.killed_until("2026-11-20T03:20:00Z", lost, None);
        assert_eq!(daemon.state.counts.started, starts, "{catchup}");
        assert_eq!(daemon.state.ended[0].outcome, Outcome::Lost);
    }
}

#[test]
fn what_still_runs_is_waited_for_and_what_never_began_begins() {
    let mut daemon = Sim::new("cron: '0 * * * *', max_runtime: 2h", "2026-11-20T00:30:00Z", 5400);
    daemon.until("2026-11-20T01:10:00Z");
    let process = Process { pid: 7, began: "then".to_owned() };
    daemon.killed_until("2026-11-20T01:20:00Z", |_| Found::Alive(Some(process.clone())), None);
    assert_eq!(daemon.state.running[0].process, Some(process.clone()));
    daemon.until("2026-11-20T02:10:00Z");
    assert_eq!(daemon.log(), ["20T01:00:00 start 20T01:00:00", "20T02:00:00 skip 02:00:00"]);
    daemon.until("2026-11-20T03:05:00Z");
    assert_eq!(daemon.log(), ["20T03:00:00 start 20T03:00:00"], "the end of the adopted run was seen at 02:30");
    daemon.killed_until("2026-11-20T03:06:00Z", |_| Found::NeverBegan, None);
    assert_eq!(daemon.log(), ["20T03:06:00 start 20T03:00:00"]);
    assert_eq!(daemon.state.counts.started, 2);
}

#[test]
fn overlap_says_what_a_tick_does_that_meets_a_run() {
    let three_ticks = |overlap: &str| {
        let mut daemon = Sim::new(&format!("cron: '0 * * * *', overlap: {overlap}"), "2026-11-20T00:30:00Z", 5400);
        daemon.until("2026-11-20T03:15:00Z");
        daemon.log()
    };
    let expect = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let first = "20T01:00:00 start 20T01:00:00";
    assert_eq!(three_ticks("skip"), expect(&[first, "20T02:00:00 skip 02:00:00", "20T03:00:00 start 20T03:00:00"]));
    assert_eq!(three_ticks("queue"), expect(&[first, "20T02:30:00 start 20T02:00:00"]));
    let beside = ["20T02:00:00 start 20T02:00:00", "20T03:00:00 start 20T03:00:00"];
    assert_eq!(three_ticks("allow"), expect(&[first, beside[0], beside[1]]));
    let replaced = three_ticks("replace");
    assert_eq!(
        replaced[..4],
        expect(&[first, "20T02:00:00 terminate 1", "20T02:00:01 replaced", "20T02:00:01 start 20T02:00:00"])
    );
}

#[test]
fn a_run_that_takes_too_long_is_told_twice_and_then_killed() {
    let mut daemon = Sim::new("cron: '0 3 * * *', max_runtime: 10m, grace: 30s", "2026-11-20T00:00:00Z", 86_400);
    daemon.deaf = true;
    daemon.until("2026-11-20T12:00:00Z");
    assert_eq!(
        daemon.log(),
        [
            "20T03:00:00 start 20T03:00:00",
            "20T03:10:00 terminate 1",
            "20T03:10:30 terminate 1",
            "20T03:10:35 kill 1",
            "20T03:10:35 overran",
        ]
    );
}

#[test]
fn a_paused_schedule_starts_nothing_but_what_is_asked_for() {
    let mut daemon = Sim::new("cron: '0 * * * *', catchup: all", "2026-11-20T00:30:00Z", 60);
    daemon.paused = true;
    daemon.until("2026-11-20T03:30:00Z");
    assert_eq!((daemon.log(), daemon.state.counts.paused), (vec![], 3));
    daemon.feed(Event::Trigger);
    daemon.until("2026-11-20T03:40:00Z");
    assert_eq!(daemon.log(), ["20T03:30:00 start 20T03:30:00"]);
    // Resumed while no daemon ran: ticks during the pause were not missed.
    daemon.paused = false;
    daemon.killed_until("2026-11-20T06:30:00Z", lost, Some("2026-11-20T05:30:00Z"));
    assert_eq!(daemon.log(), ["20T06:30:00 missed 1, made up 1", "20T06:30:00 start 20T06:00:00"]);
}

#[test]
fn a_run_that_was_asked_for_waits_for_its_turn() {
    let mut daemon = Sim::new("cron: '0 3 * * *'", "2026-11-20T00:00:00Z", 600);
    daemon.until("2026-11-20T03:01:00Z");
    daemon.feed(Event::Trigger);
    daemon.until("2026-11-20T04:00:00Z");
    assert_eq!(daemon.log(), ["20T03:00:00 start 20T03:00:00", "20T03:10:00 start 20T03:01:00"]);
}

#[test]
fn a_daemon_that_winds_down_starts_nothing_and_leaves_ticks_to_the_next_one() {
    let mut daemon = Sim::new("cron: '0 * * * *', overlap: queue", "2026-11-20T00:30:00Z", 5400);
    daemon.until("2026-11-20T02:10:00Z");
    daemon.draining = true;
    daemon.until("2026-11-20T03:30:00Z");
    assert_eq!(daemon.log(), ["20T01:00:00 start 20T01:00:00"]);
    daemon.killed_until("2026-11-20T03:40:00Z", lost, None);
    daemon.until("2026-11-20T05:20:00Z");
    let made_up = ["20T03:40:00 missed 1, made up 1", "20T03:40:00 start 20T02:00:00", "20T05:10:00 start 20T03:00:00"];
    assert_eq!(daemon.log(), made_up, "the queue outlives the daemon");
    daemon.deaf = true;
    daemon.feed(Event::Stop);
    daemon.draining = true;
    let hurried = next_wake(&daemon.schedule, &daemon.state).map(|wake| wake - daemon.now);
    assert_eq!((daemon.log(), hurried), (vec!["20T05:20:00 terminate 3".to_owned()], chrono::TimeDelta::new(1, 0)));
}

#[test]
fn jitter_is_bounded_and_the_same_each_time() {
    let schedule = schedule("cron: '0 * * * *', jitter: 10m");
    let ticks: Vec<Time> =
        std::iter::successors(Some(at("2026-11-20T00:00:00Z")), |tick| schedule.cadence.after(*tick))
            .take(200)
            .collect();
    let delay = |name: &str, tick: Time| (jittered(&schedule, name, tick) - tick).num_milliseconds();
    let delays: Vec<i64> = ticks.iter().map(|tick| delay("nightly", *tick)).collect();
    assert!(delays.iter().all(|delay| (0..600_000).contains(delay)), "{delays:?}");
    assert!(delays.iter().any(|delay| *delay < 60_000) && delays.iter().any(|delay| *delay > 540_000));
    assert_eq!(delays, ticks.iter().map(|tick| delay("nightly", *tick)).collect::<Vec<_>>());
    assert_ne!(delays, ticks.iter().map(|tick| delay("other", *tick)).collect::<Vec<_>>());
    // A daemon that dies between a tick and its start still starts it, once.
    let mut daemon = Sim::new("cron: '0 * * * *', jitter: 10m", "2026-11-20T00:30:00Z", 1);
    let tick = at("2026-11-20T01:00:00Z");
    let due = jittered(&daemon.schedule, "nightly", tick);
    assert!(due > tick + Duration::from_secs(2), "the seed of this test");
    daemon.until("2026-11-20T01:00:01Z");
    daemon.killed_until("2026-11-20T01:00:02Z", lost, None);
    daemon.until("2026-11-20T01:30:00Z");
    assert_eq!(daemon.log(), [format!("{} start 20T01:00:00", due.format("%dT%H:%M:%S"))]);
}

#[test]
fn a_machine_that_slept_missed_its_ticks() {
    let mut daemon = Sim::new("cron: '0 * * * *', catchup: none", "2026-11-20T00:30:00Z", 1);
    daemon.now = at("2026-11-20T04:00:30Z");
    daemon.feed(Event::Wake);
    assert_eq!(daemon.log(), ["20T04:00:30 missed 3, made up 0", "20T04:00:30 start 20T04:00:00"]);
}

#[test]
fn a_clock_set_back_repeats_nothing_and_stalls_nothing() {
    let mut daemon = Sim::new("cron: '0 * * * *'", "2026-11-20T00:30:00Z", 1);
    daemon.until("2026-11-20T03:00:30Z");
    daemon.log();
    daemon.now = at("2026-11-20T02:50:00Z");
    daemon.feed(Event::Wake);
    daemon.until("2026-11-20T03:30:00Z");
    assert_eq!(daemon.log(), Vec::<String>::new(), "three o'clock was there already");
    // The clock had the wrong year.
    daemon.state.accounted = Some(at("2031-01-01T00:00:00Z"));
    daemon.feed(Event::Wake);
    daemon.until("2026-11-20T04:30:00Z");
    assert_eq!(daemon.log(), ["20T03:30:00 clock set back", "20T04:00:00 start 20T04:00:00"]);
}

#[test]
fn a_changed_line_counts_from_now() {
    let mut daemon = Sim::new("cron: '0 * * * *', catchup: all", "2026-11-20T00:30:00Z", 1);
    daemon.schedule = schedule("cron: '*/10 * * * *', catchup: all");
    daemon.killed_until("2026-11-20T02:35:00Z", lost, None);
    daemon.until("2026-11-20T02:45:00Z");
    assert_eq!(daemon.log(), ["20T02:35:00 changed", "20T02:40:00 start 20T02:40:00"]);
    daemon.schedule = schedule("cron: '45 * * * *'");
    daemon.now = at("2026-11-20T02:46:00Z");
    daemon.feed(Event::Wake);
    daemon.until("2026-11-20T03:50:00Z");
    assert_eq!(daemon.log(), ["20T02:46:00 changed", "20T03:45:00 start 20T03:45:00"]);
}

#[test]
fn runs_side_by_side_have_a_limit() {
    let mut daemon = Sim::new("cron: '* * * * * *', overlap: allow", "2026-11-20T00:00:00Z", 3600);
    daemon.until("2026-11-20T00:00:40Z");
    assert_eq!((daemon.state.running.len(), daemon.state.waiting.len()), (16, 24));
}
