//! One run of the daemon: starts it as a process, and reads its log after it ends.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use searchmill_engine::schedule::{Ending, Process};
use searchmill_engine::{CheckOutcome, LogLock, OnFailure, Schedules, Time};
use serde_json::Value;

use super::process::is_alive;

/// Environment variable with the tick of the run, for use by the pipeline.
const TICK: &str = "SEARCHMILL_TICK";
/// Environment variable with the run's log, which identifies its process.
pub(super) const LOG: &str = "SEARCHMILL_RUN_LOG";
/// Poll interval for a run of an earlier daemon.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum length of a stored message, in characters.
const MESSAGE: usize = 400;

/// Settings for starting runs.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) directory: PathBuf,
    /// Store, as given to `--store`.
    pub(super) store: String,
    /// Local copy of a shared store.
    pub(super) cache: Option<PathBuf>,
    pub(super) set: Vec<String>,
    pub(super) params: Vec<PathBuf>,
}

impl Launch {
    /// Starts `searchmill run FILE` with its output in the log.
    pub(super) fn start(
        &self,
        file: &Path,
        tick: Time,
        log: File,
        path: &Path,
    ) -> std::io::Result<tokio::process::Child> {
        // stderr in the same file: a message of a library or a panic explains a run that wrote no event.
        let errors = log.try_clone()?;
        let mut command = tokio::process::Command::new(&self.program);
        // JSON lines without colors: `read_log` parses them, and takes any other line for an error message.
        command.arg("run").arg(file).args(["--json", "--quiet", "--color", "never", "--store"]).arg(&self.store);
        if let Some(cache) = &self.cache {
            command.arg("--store-cache").arg(cache);
        }
        for set in &self.set {
            command.arg("--set").arg(set);
        }
        for params in &self.params {
            command.arg("--params").arg(params);
        }
        command.env(TICK, tick.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)).env(LOG, path);
        // A process group of its own: Ctrl-C at the daemon does not reach it; a signal to the run reaches its children.
        command.current_dir(&self.directory).process_group(0);
        command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn()
    }
}

/// Returns the outcome of a run started by this daemon.
pub(super) fn ended(schedules: &Schedules, name: &str, ticket: u64, status: std::io::Result<ExitStatus>) -> Ending {
    let mut ending = read_log(&schedules.run_log(name, ticket));
    match status {
        Ok(status) => {
            ending.exit = status.code();
            if let Some(signal) = status.signal() {
                ending.message = Some(format!("killed by signal {signal}"));
            }
        }
        Err(error) => ending.message = Some(format!("cannot wait for the process: {error}")),
    }
    // A successful run may have written to stderr too: that is no failure.
    if ending.exit == Some(0) {
        ending.message = None;
    }
    ending
}

/// Returns the outcome of a run started by an earlier daemon, from its record in the store; `None` without a record.
pub(super) fn recorded(schedules: &Schedules, name: &str, ticket: u64) -> Option<Ending> {
    let mut ending = read_log(&schedules.run_log(name, ticket));
    ending.exit = schedules.run(ending.run.as_deref()?)?.exit;
    if ending.exit == Some(0) {
        ending.message = None;
    }
    ending.exit.is_some().then_some(ending)
}

/// Whether the run had started, according to its log.
pub(super) fn had_begun(schedules: &Schedules, name: &str, ticket: u64) -> bool {
    std::fs::metadata(schedules.run_log(name, ticket)).is_ok_and(|log| log.len() > 0)
}

/// Whether a run of an earlier daemon is still active.
pub(super) fn goes_on(schedules: &Schedules, name: &str, ticket: u64, process: Option<&Process>) -> bool {
    match schedules.run_log_lock(name, ticket) {
        LogLock::Held => true,
        LogLock::Free | LogLock::Absent => false,
        LogLock::Unknown => process.is_some_and(is_alive),
    }
}

/// Waits for a run of an earlier daemon.
pub(super) async fn outlive(schedules: &Schedules, name: &str, ticket: u64, process: Option<&Process>) -> Ending {
    while goes_on(schedules, name, ticket, process) {
        // Not a child of this daemon, so no exit status can be waited for: poll.
        tokio::time::sleep(LOOK).await;
    }
    if let Some(ending) = recorded(schedules, name, ticket) {
        return ending;
    }
    let message = Some("the process ended without a record".to_owned());
    Ending { message, ..read_log(&schedules.run_log(name, ticket)) }
}

/// Reads the outcome from a log: the run, its totals, and the last error.
fn read_log(path: &Path) -> Ending {
    let mut ending = Ending::default();
    let Ok(file) = File::open(path) else { return ending };
    // Bytes, not `lines()`: a line that is not UTF-8 must not hide the events after it.
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        match serde_json::from_str::<Value>(&line) {
            Ok(event) => read_event(&event, &mut ending),
            Err(_) if line.trim().is_empty() => {}
            Err(_) => ending.message = Some(cut(line.trim())),
        }
    }
    ending
}

fn read_event(event: &Value, ending: &mut Ending) {
    match text(event, "event") {
        "run_started" => ending.run = Some(text(event, "run").to_owned()),
        // An error that came before explains more.
        "held_back" if ending.message.is_none() => {
            ending.message = Some(cut(&format!("{}: {}", text(event, "node"), text(event, "reason"))));
        }
        "node_checked" => {
            let checks: Vec<CheckOutcome> = serde_json::from_value(event["checks"].clone()).unwrap_or_default();
            // Of the others, one fails the node itself, and one is only reported.
            let failed = checks.iter().filter(|check| !check.passed && check.check.on_failure == OnFailure::Hold);
            let failed = failed.map(ToString::to_string).collect::<Vec<_>>().join("; ");
            if !failed.is_empty() {
                let node = text(event, "node");
                ending.message = Some(cut(&format!("{node}: a check failed: {failed}")));
            }
        }
        "budget_used_up" => ending.message = Some(cut(&format!("the budget is used up: {}", text(event, "limit")))),
        "node_failed" => {
            ending.message = Some(cut(&format!("{}: {}", text(event, "node"), text(event, "message"))));
        }
        "run_finished" => {
            ending.cached = count(event, "cached");
            ending.finished = count(event, "finished");
            ending.calls = count(event, "calls");
            ending.held = count(event, "checks_held") + count(event, "held_back");
        }
        _ if text(event, "severity") == "error" => ending.message = Some(cut(text(event, "message"))),
        _ => {}
    }
}

fn text<'e>(event: &'e Value, name: &str) -> &'e str {
    event[name].as_str().unwrap_or_default()
}

fn count(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_default()
}

fn cut(text: &str) -> String {
    text.chars().take(MESSAGE).collect()
}
