//! Tests of the `schedule` daemon: the real program with real runs, clocks and kills.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use searchmill_engine::schedule::{Cause, Ended, Outcome, State};
use serde_json::Value;

use crate::harness::project::{Mill, Told};

/// Timeout of every wait: nothing here takes so long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns a project with documents and a pipeline that logs every run, takes `seconds`, and has this schedule.
fn project(schedule: &str, seconds: &str) -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", "{\"id\": \"d1\", \"text\": \"one\"}\n");
    std::fs::create_dir(mill.path("pipelines")).expect("a folder");
    mill.write("pipelines/nightly.yaml", &pipeline(schedule, seconds));
    mill
}

/// Returns the pipeline. It does work only if the documents changed; `slow` takes its time and passes its rows on.
fn pipeline(schedule: &str, seconds: &str) -> String {
    let script = format!("echo began >> began.txt; sleep {seconds}; cat");
    format!(
        "name: nightly\nschedule: {{{schedule}}}\nnodes:\n  \
         corpus: {{op: read, with: {{path: documents.jsonl, as: document}}}}\n  \
         slow: {{op: exec, from: corpus, with: {{command: [sh, -c, {script:?}], as: document}}}}\n"
    )
}

/// Replaces a file atomically: the daemon and its runs may read it at any time.
pub(crate) fn put(mill: &Mill, name: &str, text: &str) {
    mill.write("unfinished", text);
    std::fs::rename(mill.path("unfinished"), mill.path(name)).expect("renamed");
}

/// A daemon, killed with all its runs when the test ends.
pub(crate) struct Daemon {
    child: Child,
    store: std::path::PathBuf,
}

impl Daemon {
    pub(crate) fn start(mill: &Mill) -> Self {
        Self::start_with(mill, &[])
    }

    pub(crate) fn start_with(mill: &Mill, environment: &[(&str, &str)]) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(mill.path("daemon.log")).expect("a log");
        let mut command = mill.command(&["schedule", "pipelines", "--json"]);
        command.envs(environment.iter().copied());
        let child = command.stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("a daemon");
        Self { child, store: mill.store_path() }
    }

    pub(crate) fn signal(&self, name: &str) {
        let told = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(told.expect("`kill` is there").success());
    }

    /// Kills it with `kill -9`: no cleanup, its runs continue.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("dead");
        std::mem::forget(self);
    }

    /// Waits until the daemon exits.
    pub(crate) fn end(&mut self) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a state") {
                return status.code().unwrap_or(-1);
            }
            assert!(start.elapsed() < PATIENCE, "the daemon did not exit");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        kill_runs(&self.store);
    }
}

/// Kills the remaining runs of a schedule whose daemon is gone.
fn kill_runs(store: &std::path::Path) {
    let Ok(text) = std::fs::read(store.join("schedule/nightly/state.json")) else { return };
    let Ok(state) = serde_json::from_slice::<State>(&text) else { return };
    for process in state.running.iter().filter_map(|running| running.process.as_ref()) {
        // Killing fails if the run has already exited.
        drop(Command::new("kill").args(["-KILL", "--", &format!("-{}", process.pid)]).stderr(Stdio::null()).status());
    }
}

fn state(mill: &Mill) -> State {
    let text = std::fs::read(mill.path(".searchmill/schedule/nightly/state.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Waits until the state on disk satisfies a condition.
pub(crate) fn wait(mill: &Mill, what: &str, wanted: impl Fn(&State) -> bool) -> State {
    let start = Instant::now();
    loop {
        let state = state(mill);
        if wanted(&state) {
            return state;
        }
        let log = std::fs::read_to_string(mill.path("daemon.log")).unwrap_or_default();
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}\n{log}\n{state:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns events of the daemon's log.
pub(crate) fn events(mill: &Mill, name: &str) -> Vec<Value> {
    let text = mill.read("daemon.log");
    let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|event| event["event"] == name).collect()
}

fn began(mill: &Mill) -> usize {
    std::fs::read_to_string(mill.path("began.txt")).unwrap_or_default().lines().count()
}

pub(crate) fn get(address: &str, path: &str) -> (String, Value) {
    let mut stream = TcpStream::connect(address).expect("the endpoint");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
    let status = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    (status, serde_json::from_str(body).unwrap_or_default())
}

pub(crate) fn good(ended: &Ended) -> bool {
    ended.outcome == Outcome::Succeeded
}

const EVERY_SECOND: &str = "cron: '* * * * * *'";

/// Returns a schedule that never fires during a test: the minute it names was three minutes ago.
pub(crate) fn far_away() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
    format!("cron: '{} * * * *'", (now / 60 + 57) % 60)
}

#[test]
fn a_second_run_pays_only_for_what_is_new() {
    let mill = project(EVERY_SECOND, "0");
    let mut daemon = Daemon::start(&mill);
    let state = wait(&mill, "two runs have ended", |state| state.ended.iter().filter(|ended| good(ended)).count() >= 2);
    let work = |ended: &Ended| (ended.ending.finished, ended.ending.cached);
    assert_eq!((work(&state.ended[0]), work(&state.ended[1])), ((2, 0), (0, 2)), "all cached the second time");
    assert_eq!(began(&mill), 1);
    put(&mill, "documents.jsonl", "{\"id\": \"d1\", \"text\": \"one\"}\n{\"id\": \"d2\", \"text\": \"two\"}\n");
    wait(&mill, "a run sees the new row", |state| state.ended.iter().skip(2).any(|ended| ended.ending.finished == 2));
    assert_eq!(began(&mill), 2);
    let runs = mill.call(&["runs"]).exit(0).stdout;
    assert!(runs.contains("nightly"), "{runs}");
    // Two daemons cannot serve the same schedule of one store.
    let second = mill.call(&["schedule", "pipelines/nightly.yaml"]).exit(5);
    assert!(second.stderr.contains(&format!("another daemon (process {})", daemon.child.id())), "{}", second.stderr);
    daemon.signal("TERM");
    assert_eq!(daemon.end(), 0);
    assert_eq!(events(&mill, "daemon_stopped").len(), 1);
    assert!(state.running.len() <= 1);
}

#[test]
fn the_endpoint_answers_and_a_schedule_is_steered() {
    let mill = project(&far_away(), "0");
    let mut daemon = Daemon::start(&mill);
    let state = wait(&mill, "the daemon is there", |state| state.daemon.is_some());
    let address = state.daemon.expect("an address").address;
    let ok = || get(&address, "/healthz");
    assert_eq!(ok().0, "200", "{}", ok().1);
    let said = std::iter::repeat_with(|| get(&address, "/status")).find(|(code, _)| code == "200");
    let status = said.expect("a status, once the first round is done").1;
    let schedule = &status["schedules"][0];
    assert_eq!((&schedule["name"], &schedule["paused"]), (&"nightly".into(), &false.into()), "{status}");
    assert!(schedule["next"].as_str().is_some_and(|next| next.ends_with(":00Z")), "{status}");
    assert_eq!(get(&address, "/elsewhere").0, "404");

    mill.call(&["schedule", "pause", "nightly"]).exit(0);
    let listed = mill.call(&["schedule", "list"]).exit(0).stdout;
    assert!(listed.contains("paused") && !listed.contains("no daemon"), "{listed}");
    // Triggered runs start even if the schedule is paused.
    mill.call(&["schedule", "trigger", "nightly"]).exit(0);
    let state = wait(&mill, "the run that was asked for has ended", |state| state.ended.iter().any(good));
    assert_eq!(state.ended[0].ticket.cause, Cause::Trigger);
    let listed = mill.call(&["schedule", "list", "--json"]).exit(0).events().remove(0);
    assert_eq!((&listed["paused"], &listed["last"]["outcome"]), (&true.into(), &"succeeded".into()));
    mill.call(&["schedule", "resume", "nightly"]).exit(0);
    daemon.signal("INT");
    assert_eq!(daemon.end(), 0);

    // Without a daemon, `list`, `next` and `pause` work, and `trigger` suggests an alternative.
    let listed = mill.call(&["schedule", "list"]).exit(0).stdout;
    assert!(listed.contains("no daemon") && !listed.contains("paused"), "{listed}");
    let next = mill.call(&["schedule", "next", "nightly", "-n", "3"]).exit(0).stdout;
    assert_eq!(next.lines().count(), 4, "{next}");
    mill.call(&["schedule", "pause", "pipelines/nightly.yaml"]).exit(0);
    let told = mill.call(&["schedule", "trigger", "nightly"]).exit(2);
    assert!(told.stderr.contains("searchmill run pipelines/nightly.yaml"), "{}", told.stderr);
    let told = mill.call(&["schedule", "pause", "daily"]).exit(2);
    assert!(told.stderr.contains("schedules: nightly"), "{}", told.stderr);
}

#[test]
fn a_paused_schedule_lets_ticks_pass() {
    let mill = project(EVERY_SECOND, "0");
    mill.call(&["schedule", "pause", "pipelines/nightly.yaml"]).exit(0);
    let _daemon = Daemon::start(&mill);
    let state = wait(&mill, "ticks have passed", |state| state.counts.paused >= 2);
    assert_eq!((state.counts.started, began(&mill)), (0, 0));
    mill.call(&["schedule", "resume", "nightly"]).exit(0);
    wait(&mill, "a run has ended", |state| state.ended.iter().any(good));
}

/// `kill -9`, a pause, a new daemon: returns the notice of missed ticks, after `catchup` was applied.
fn missed(catchup: &str) -> (Mill, Value) {
    let mill = project(&format!("{EVERY_SECOND}, catchup: {catchup}"), "0");
    let daemon = Daemon::start(&mill);
    wait(&mill, "a run has ended", |state| state.ended.iter().any(good));
    daemon.kill();
    let before = state(&mill).accounted.expect("ticks were counted");
    let start = Instant::now();
    while std::time::SystemTime::now() < std::time::SystemTime::from(before) + Duration::from_secs(3) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    let daemon = Daemon::start(&mill);
    wait(&mill, "the new daemon has begun", |state| state.daemon.as_ref().is_some_and(|d| d.pid == daemon.child.id()));
    wait(&mill, "a tick has come in time", |state| {
        state.accounted.is_some_and(|a| a > before + Duration::from_secs(4))
    });
    let notice = events(&mill, "missed").first().cloned().unwrap_or_default();
    assert!(notice["ticks"].as_u64().is_some_and(|ticks| ticks >= 2), "{notice}");
    (mill, notice)
}

#[test]
fn what_a_killed_daemon_missed_is_passed_over() {
    let (mill, notice) = missed("none");
    let state = state(&mill);
    assert_eq!((&notice["made_up"], state.counts.missed), (&0.into(), notice["ticks"].as_u64().unwrap()));
    assert!(state.ended.iter().all(|ended| ended.ticket.cause == Cause::Tick));
}

#[test]
fn what_a_killed_daemon_missed_is_made_up_for_once() {
    let (mill, notice) = missed("latest");
    assert_eq!(notice["made_up"], 1);
    let made_up = |ended: &&Ended| ended.ticket.cause == Cause::Catchup;
    let state = wait(&mill, "the made-up run has ended", |state| state.ended.iter().any(|ended| made_up(&ended)));
    let made_up: Vec<&Ended> = state.ended.iter().filter(made_up).collect();
    assert_eq!(made_up.len(), 1);
    assert_eq!(notice["last"], serde_json::to_value(made_up[0].ticket.tick).unwrap(), "the last of those missed");
}

#[test]
fn what_a_killed_daemon_missed_is_made_up_for_tick_by_tick() {
    let (mill, notice) = missed("all");
    let ticks = notice["ticks"].as_u64().unwrap() as usize;
    assert_eq!(notice["made_up"], ticks);
    let made_up = |state: &State| state.ended.iter().filter(|ended| ended.ticket.cause == Cause::Catchup).count();
    let state = wait(&mill, "all made-up runs have ended", |state| made_up(state) >= ticks);
    let ticks: Vec<_> = state.ended.iter().map(|ended| ended.ticket.tick).collect();
    assert!(ticks.is_sorted(), "in order: {ticks:?}");
}

#[test]
fn a_run_outlives_its_daemon_and_is_not_started_twice() {
    let mill = project(&far_away(), "3");
    let daemon = Daemon::start(&mill);
    wait(&mill, "the daemon is there", |state| state.daemon.is_some());
    mill.call(&["schedule", "trigger", "nightly"]).exit(0);
    wait(&mill, "the run has begun", |state| {
        state.running.iter().any(|run| run.process.is_some()) && began(&mill) == 1
    });
    daemon.kill();
    let mut daemon = Daemon::start(&mill);
    let state = wait(&mill, "the adopted run has ended", |state| !state.ended.is_empty());
    assert_eq!(events(&mill, "adopted").len(), 1, "{}", mill.read("daemon.log"));
    assert_eq!(
        (state.ended[0].outcome, state.ended[0].ending.exit, state.ended[0].ending.finished),
        (Outcome::Succeeded, Some(0), 2)
    );
    assert_eq!((began(&mill), state.counts.started), (1, 1));
    daemon.signal("TERM");
    assert_eq!(daemon.end(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_whose_process_nobody_noted_is_found_and_kept_to_its_time() {
    let mill = project(&far_away(), "20");
    let daemon = Daemon::start(&mill);
    wait(&mill, "the daemon is there", |state| state.daemon.is_some());
    mill.call(&["schedule", "trigger", "nightly"]).exit(0);
    wait(&mill, "the run has begun", |state| {
        state.running.iter().any(|run| run.process.is_some()) && began(&mill) == 1
    });
    daemon.kill();
    // As if it had been killed between starting a run and recording it.
    let mut left: Value = serde_json::from_str(&mill.read(".searchmill/schedule/nightly/state.json")).expect("JSON");
    let process = std::mem::take(&mut left["running"][0]["process"]);
    left["running"][0]["stage"] = "starting".into();
    put(&mill, ".searchmill/schedule/nightly/state.json", &left.to_string());
    put(&mill, "pipelines/nightly.yaml", &pipeline(&format!("{}, max_runtime: 1s, grace: 1s", far_away()), "20"));
    let _daemon = Daemon::start(&mill);
    let state = wait(&mill, "the run was found", |state| state.running.iter().any(|run| run.process.is_some()));
    assert_eq!(serde_json::to_value(&state.running[0].process).expect("JSON"), process);
    let state = wait(&mill, "the run was stopped", |state| !state.ended.is_empty());
    assert_eq!((state.ended[0].outcome, state.ended[0].ending.exit), (Outcome::Overran, Some(130)));
}

#[test]
fn a_run_that_was_written_down_and_never_begun_begins() {
    let mill = project(&far_away(), "0");
    let mut daemon = Daemon::start(&mill);
    wait(&mill, "the daemon is there", |state| state.daemon.is_some());
    daemon.signal("TERM");
    assert_eq!(daemon.end(), 0);
    // The state of a daemon that was killed after recording a run it was about to start.
    let mut left: Value = serde_json::from_str(&mill.read(".searchmill/schedule/nightly/state.json")).expect("JSON");
    let time = left["daemon"]["since"].clone();
    left["running"] = serde_json::json!([{
        "id": 41, "tick": time, "cause": "tick", "began": time, "process": null, "stage": "starting",
    }]);
    left["counts"]["started"] = 1.into();
    put(&mill, ".searchmill/schedule/nightly/state.json", &left.to_string());
    let _daemon = Daemon::start(&mill);
    let state = wait(&mill, "the run has ended", |state| state.ended.iter().any(good));
    assert_eq!((state.ended[0].ticket.id, state.counts.started, began(&mill)), (41, 1, 1));
}

#[test]
fn nothing_starts_that_could_not_be_written_down() {
    let mill = project(&far_away(), "0");
    let _daemon = Daemon::start(&mill);
    let address = wait(&mill, "the daemon is there", |state| state.daemon.is_some()).daemon.expect("it").address;
    // The state cannot be replaced: even root cannot rename a file over a folder.
    let path = mill.path(".searchmill/schedule/nightly/state.json");
    std::fs::rename(&path, mill.path("aside")).expect("moved");
    std::fs::create_dir_all(path.join("in the way")).expect("a folder");
    let asked = serde_json::json!("2026-11-20T00:00:00Z").to_string();
    std::fs::create_dir_all(mill.path(".searchmill/schedule/nightly/asked")).expect("a folder");
    put(&mill, ".searchmill/schedule/nightly/asked/one.json", &asked);
    let start = Instant::now();
    while get(&address, "/healthz").0 != "503" {
        assert!(start.elapsed() < PATIENCE, "{}", mill.read("daemon.log"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((began(&mill), events(&mill, "problem").len()), (0, 1));
    std::fs::remove_dir_all(&path).expect("out of the way");
    let state = wait(&mill, "the run has ended", |state| state.ended.iter().any(good));
    assert_eq!((state.counts.started, get(&address, "/healthz").0.as_str()), (1, "200"));
}

#[test]
fn a_run_that_died_with_its_daemon_is_lost_and_made_up_for() {
    let mill = project("cron: '*/2 * * * * *', catchup: latest", "15");
    let daemon = Daemon::start(&mill);
    wait(&mill, "a run has begun", |state| state.running.iter().any(|run| run.process.is_some()) && began(&mill) == 1);
    daemon.kill();
    kill_runs(&mill.store_path());
    put(&mill, "pipelines/nightly.yaml", &pipeline("cron: '*/2 * * * * *', catchup: latest", "0"));
    let _daemon = Daemon::start(&mill);
    let state = wait(&mill, "a later run has ended", |state| state.ended.iter().any(good));
    assert_eq!(state.ended[0].outcome, Outcome::Lost);
}

#[test]
fn a_tick_that_meets_a_run_does_as_the_overlap_says() {
    let start = |overlap: &str| {
        let mill = project(&format!("{EVERY_SECOND}, overlap: {overlap}, grace: 1s"), "15");
        let daemon = Daemon::start(&mill);
        (mill, daemon)
    };
    let [(skip, _one), (queue, _two), (allow, _three), (replace, _four)] =
        ["skip", "queue", "allow", "replace"].map(start);
    let state = wait(&skip, "ticks were passed over", |state| state.counts.skipped >= 2);
    assert_eq!((state.running.len(), state.waiting.len(), state.counts.started), (1, 0, 1));
    let state = wait(&queue, "ticks wait", |state| state.waiting.len() >= 2);
    assert_eq!((state.running.len(), state.counts.skipped), (1, 0));
    wait(&allow, "runs go side by side", |state| state.running.len() >= 2);
    let state =
        wait(&replace, "a run was replaced", |state| state.ended.iter().any(|e| e.outcome == Outcome::Replaced));
    assert!(state.running.len() <= 1);
}

#[test]
fn a_run_that_takes_too_long_is_stopped() {
    let mill = project(&format!("{}, max_runtime: 1s, grace: 1s", far_away()), "20");
    let mut daemon = Daemon::start(&mill);
    wait(&mill, "the daemon is there", |state| state.daemon.is_some());
    mill.call(&["schedule", "trigger", "nightly"]).exit(0);
    let state = wait(&mill, "the run was stopped", |state| !state.ended.is_empty());
    assert_eq!(state.ended[0].outcome, Outcome::Overran);
    let signals: Vec<_> = events(&mill, "stopping_run").iter().map(|event| event["signal"].clone()).collect();
    assert_eq!(signals[..2], [1, 2], "ordered to drain, then to stop");
    daemon.signal("TERM");
    assert_eq!(daemon.end(), 0);
}

#[test]
fn a_daemon_waits_for_its_runs_and_a_second_signal_stops_them() {
    let mill = project(&far_away(), "20");
    let mut daemon = Daemon::start(&mill);
    wait(&mill, "the daemon is there", |state| state.daemon.is_some());
    mill.call(&["schedule", "trigger", "nightly"]).exit(0);
    wait(&mill, "the run has begun", |_| began(&mill) == 1);
    daemon.signal("TERM");
    wait(&mill, "the signal was heard", |_| events(&mill, "stopping").len() == 1);
    assert!(daemon.child.try_wait().expect("a state").is_none(), "it waits for the run");
    daemon.signal("TERM");
    assert_eq!(daemon.end(), 0);
    assert_eq!(state(&mill).ended[0].outcome, Outcome::Stopped);
}

#[test]
fn a_failed_run_says_why_and_the_next_tick_tries_again() {
    let mill = project("cron: '*/2 * * * * *'", "0; exit 7");
    let _daemon = Daemon::start(&mill);
    let state = wait(&mill, "two runs have failed", |state| state.ended.len() >= 2);
    let message = state.ended[0].ending.message.clone().unwrap_or_default();
    assert!(state.ended[0].outcome == Outcome::Failed && message.starts_with("slow: "), "{message}");
    // A changed file is reloaded without a restart, including its schedule.
    put(&mill, "pipelines/nightly.yaml", &pipeline(EVERY_SECOND, "0"));
    wait(&mill, "a run has ended well", |state| state.cron == "* * * * * *" && state.ended.iter().any(good));
    put(&mill, "pipelines/nightly.yaml", "nodes: [");
    wait(&mill, "a run says what is wrong", |state| {
        state.ended.last().is_some_and(|ended| ended.ending.exit == Some(2))
    });
    assert_eq!(events(&mill, "problem").len(), 1);
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    let refused = |mill: &Mill, args: &[&str], words: &str| {
        let told = Told::new(mill.command(args).output().expect("the program")).exit(2);
        assert!(told.stderr.contains(words), "{}", told.stderr);
    };
    let mill = project("cron: '0 25 * * *', timezone: berlin", "0");
    let place = "pipelines/nightly.yaml:2:21";
    for command in ["schedule", "validate"] {
        refused(&mill, &[command, "pipelines/nightly.yaml"], place);
        refused(&mill, &[command, "pipelines/nightly.yaml"], "did you mean `Europe/Berlin`?");
    }
    mill.write("plain.yaml", "nodes: {corpus: {op: read, with: {path: documents.jsonl, as: document}}}\n");
    refused(&mill, &["schedule", "plain.yaml"], "has no `schedule:`");
    refused(&mill, &["schedule", "missing.yaml"], "missing.yaml");
    refused(&mill, &["schedule"], "FILE");
    put(&mill, "pipelines/nightly.yaml", &pipeline(EVERY_SECOND, "0"));
    mill.write("pipelines/copy.yaml", &pipeline(EVERY_SECOND, "0"));
    refused(&mill, &["schedule", "pipelines"], "are both called `nightly`");
    refused(&mill, &["schedule", "pipelines/copy.yaml", "--listen", "0.0.0.0:0"], "not a loopback address");
    refused(&mill, &["schedule", "next", "weekly"], "no schedule and no file `weekly`");
}
