//! What is known of one schedule, kept on disk between steps.

use serde::{Deserialize, Serialize};

use crate::spec::Time;

/// Ends that are remembered.
const REMEMBERED: usize = 50;

/// Why a run was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its time came.
    Tick,
    /// Its time came while nobody was there.
    Catchup,
    /// Somebody asked.
    Trigger,
}

/// A run that is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Number within the schedule.
    pub id: u64,
    /// The point in time it stands for.
    pub tick: Time,
    /// Why.
    pub cause: Cause,
}

/// A process, told apart from a later one with the same number by when it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, as the operating system counts.
    pub began: String,
}

/// Why a run was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It took longer than `max_runtime`.
    Overran,
    /// `overlap: replace`: a later tick took its place.
    Replaced,
    /// The daemon was told to stop at once.
    Shutdown,
}

/// How far a run has come, or how hard it was told to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage")]
pub enum Stage {
    /// About to begin: written down before the process is made.
    Starting,
    /// It runs.
    Running,
    /// Told to finish what is in flight.
    Draining {
        /// Why.
        reason: StopReason,
        /// When it is told again.
        until: Time,
    },
    /// Told to stop at once.
    Stopping {
        /// Why.
        reason: StopReason,
        /// When it is killed.
        until: Time,
    },
    /// Killed.
    Killed {
        /// Why.
        reason: StopReason,
    },
}

/// A run that is going.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// What was asked for.
    #[serde(flatten)]
    pub ticket: Ticket,
    /// When it was started.
    pub began: Time,
    /// Its process, once it is there.
    pub process: Option<Process>,
    /// How far it is.
    #[serde(flatten)]
    pub stage: Stage,
}

impl Running {
    /// Why it was told to stop, if it was.
    #[must_use]
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
    /// Exit code 3: rows of external nodes failed.
    DeadLetters,
    /// Exit code 4: a budget was spent; the next run goes on.
    BudgetSpent,
    /// Any other exit code, or a signal.
    Failed,
    /// Stopped: it took too long.
    Overran,
    /// Stopped: a later tick took its place.
    Replaced,
    /// Stopped with the daemon.
    Stopped,
    /// Its process is gone and left no record of an end.
    Lost,
}

impl Outcome {
    /// As it is shown.
    #[must_use]
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

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// What was asked for.
    #[serde(flatten)]
    pub ticket: Ticket,
    /// When it was started.
    pub began: Time,
    /// When its end was seen.
    pub ended: Time,
    /// How.
    pub outcome: Outcome,
    /// Exit code, where there was one.
    pub exit: Option<i32>,
    /// The run in the store, if it got that far.
    pub run: Option<String>,
    /// Nodes whose result was known.
    pub cached: u64,
    /// Nodes that ran.
    pub finished: u64,
    /// Calls to the outside.
    pub calls: u64,
    /// What it said last, when it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What came of all ticks so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Runs started.
    pub started: u64,
    /// Of these, ended well.
    pub succeeded: u64,
    /// Ended in any other way.
    pub failed: u64,
    /// Ticks that came while a run was going, and did nothing.
    pub skipped: u64,
    /// Ticks that nobody was there for, and that were not made up for.
    pub missed: u64,
    /// Ticks that came while the schedule was paused.
    pub paused: u64,
}

/// One schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The pipeline's name.
    pub name: String,
    /// Its file, as given to the daemon.
    pub file: String,
    /// Cron line and time zone that the ticks were counted by.
    pub cron: String,
    /// Its time zone.
    pub timezone: String,
    /// All ticks up to here are accounted for.
    pub accounted: Option<Time>,
    /// Number of the next ticket.
    pub serial: u64,
    /// Runs that are going.
    pub running: Vec<Running>,
    /// Runs that wait for their turn.
    pub waiting: Vec<Ticket>,
    /// Runs that have ended, newest last.
    pub ended: Vec<Ended>,
    /// What came of all ticks so far.
    pub counts: Counts,
    /// Where the daemon answers, and since when.
    #[serde(default)]
    pub daemon: Option<Daemon>,
}

/// The daemon that serves a schedule. It may be gone: only the lease says whether it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// Its process.
    pub pid: u32,
    /// Address of its health endpoint.
    pub address: String,
    /// When it began.
    pub since: Time,
}

impl State {
    /// A schedule that nothing is known of.
    #[must_use]
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
