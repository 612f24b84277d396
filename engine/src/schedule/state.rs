//! The state of one schedule, stored on disk between steps.

use serde::{Deserialize, Serialize};

use crate::spec::{Occasion, Time};

/// Limit of finished runs in the state.
const REMEMBERED: usize = 50;

/// Why a run was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its tick is due.
    Tick,
    /// Its tick was missed.
    Catchup,
    /// A user requested it.
    Trigger,
}

/// A requested run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Number within the schedule.
    pub id: u64,
    /// The tick it belongs to.
    pub tick: Time,
    /// The cause.
    pub cause: Cause,
}

/// A process, distinguished from later ones with the same id by its start time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time, as reported by the operating system.
    pub began: String,
}

/// Why a run is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It exceeded `max_runtime`.
    Overran,
    /// `overlap: replace`: a later tick replaces it.
    Replaced,
    /// The daemon was told to stop immediately.
    Shutdown,
}

/// Progress of a run, or of stopping it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage")]
pub enum Stage {
    /// About to start: stored before the process is created.
    Starting,
    /// Running.
    Running,
    /// Told to finish calls in flight.
    Draining {
        /// The reason.
        reason: StopReason,
        /// When the second signal is sent.
        until: Time,
    },
    /// Told to stop immediately.
    Stopping {
        /// The reason.
        reason: StopReason,
        /// When it is killed.
        until: Time,
    },
    /// Killed.
    Killed {
        /// The reason.
        reason: StopReason,
    },
}

/// An active run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The request.
    #[serde(flatten)]
    pub ticket: Ticket,
    /// Start time.
    pub began: Time,
    /// Its process, once started.
    pub process: Option<Process>,
    /// Its stage.
    #[serde(flatten)]
    pub stage: Stage,
}

impl Running {
    /// Notes that its process runs.
    pub(super) fn is_up(&mut self, process: Option<Process>) {
        self.process = process.or(self.process.take());
        if self.stage == Stage::Starting {
            self.stage = Stage::Running;
        }
    }

    /// Returns why the run was told to stop, if it was.
    pub fn stop_reason(&self) -> Option<StopReason> {
        match self.stage {
            Stage::Starting | Stage::Running => None,
            Stage::Draining { reason, .. } | Stage::Stopping { reason, .. } | Stage::Killed { reason } => Some(reason),
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Exit code 0.
    Succeeded,
    /// Exit code 3: rows of external nodes were rejected.
    DeadLetters,
    /// Exit code 4: a budget was used up; the next run resumes.
    BudgetSpent,
    /// Any other exit code, or a signal.
    Failed,
    /// Stopped: exceeded `max_runtime`.
    Overran,
    /// Stopped: replaced by a later tick.
    Replaced,
    /// Stopped with the daemon.
    Stopped,
    /// Its process is gone without a record of its end.
    Lost,
}

impl Outcome {
    /// Returns the displayed name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::DeadLetters => "dead letters",
            Self::BudgetSpent => "budget spent",
            Self::Failed => "failed",
            Self::Overran => "overran",
            Self::Replaced => "replaced",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
        }
    }
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The request.
    #[serde(flatten)]
    pub ticket: Ticket,
    /// Start time.
    pub began: Time,
    /// When its end was detected.
    pub ended: Time,
    /// The outcome.
    pub outcome: Outcome,
    /// How its process ended.
    #[serde(flatten)]
    pub ending: Ending,
}

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Exit code; missing after a signal.
    pub exit: Option<i32>,
    /// The run in the store, if one was recorded.
    pub run: Option<String>,
    /// Nodes with a cached result.
    pub cached: u64,
    /// Nodes that ran.
    pub finished: u64,
    /// External calls.
    pub calls: u64,
    /// Checks and nodes that hold outputs back.
    #[serde(default)]
    pub held: u64,
    /// Its last output, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Counts over all ticks so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Runs started.
    pub started: u64,
    /// Runs that succeeded.
    pub succeeded: u64,
    /// Runs that ended otherwise.
    pub failed: u64,
    /// Ticks skipped because a run was active.
    pub skipped: u64,
    /// Missed ticks that were not caught up.
    pub missed: u64,
    /// Ticks that arrived while the schedule was paused.
    pub paused: u64,
}

/// A note that the daemon has to deliver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Ticket of the run.
    pub id: u64,
    /// Why it is sent.
    pub occasion: Occasion,
    /// Since when the schedule fails, or failed.
    pub since: Time,
}

/// The state of one schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The pipeline's name.
    pub name: String,
    /// The pipeline's file, as given to the daemon.
    pub file: String,
    /// Cron line by which the ticks were counted.
    pub cron: String,
    /// Time zone by which the ticks were counted.
    pub timezone: String,
    /// All ticks up to here are accounted for.
    pub accounted: Option<Time>,
    /// Number of the next ticket.
    pub serial: u64,
    /// Active runs.
    pub running: Vec<Running>,
    /// Queued runs.
    pub waiting: Vec<Ticket>,
    /// Finished runs, newest last.
    pub ended: Vec<Ended>,
    /// Counts over all ticks so far.
    pub counts: Counts,
    /// Notes that are not delivered yet.
    #[serde(default)]
    pub notes: Vec<Note>,
    /// The daemon's address, and since when it serves the schedule.
    #[serde(default)]
    pub daemon: Option<Daemon>,
}

/// The daemon that serves a schedule. It may have died: only the lease shows whether it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// Process id.
    pub pid: u32,
    /// Address of the health endpoint.
    pub address: String,
    /// Start time.
    pub since: Time,
}

impl State {
    /// The state of a new schedule.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub(super) fn ticket(&mut self, tick: Time, cause: Cause) -> Ticket {
        self.serial += 1;
        Ticket { id: self.serial, tick, cause }
    }

    pub(super) fn remember(&mut self, ended: Ended) {
        match ended.outcome {
            Outcome::Succeeded => self.counts.succeeded += 1,
            _ => self.counts.failed += 1,
        }
        self.ended.push(ended);
        let excess = self.ended.len().saturating_sub(REMEMBERED);
        self.ended.drain(..excess);
    }
}
