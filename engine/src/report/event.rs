//! Events of a run: one stream for the terminal, for `--json` and for the run's log.

use std::fmt;

use serde::Serialize;

use crate::fingerprint::{NodeKey, Reason};

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunSummary {
    /// The run.
    pub run: String,
    /// Nodes whose result was known.
    pub cached: usize,
    /// Nodes that ran.
    pub finished: usize,
    /// Nodes that failed.
    pub failed: usize,
    /// Nodes not run because something before them failed or the run was stopped.
    pub skipped: usize,
    /// Rows that failed in external nodes of this run.
    pub dead_letters: u64,
    /// Nodes whose outputs were not delivered because too many rows were lost before them.
    pub held_back: usize,
    /// Rows that other nodes of this run rejected.
    pub rejects: u64,
    /// Was it told to stop?
    pub interrupted: bool,
    /// Calls to the outside in this run.
    pub calls: u64,
    /// Prompt tokens paid in this run.
    pub prompt_tokens: u64,
    /// Completion tokens paid in this run.
    pub completion_tokens: u64,
    /// What that cost, at the prices that the pipeline tells.
    pub cost: f64,
    /// The currency of these prices.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub currency: String,
    /// The limit of the budget that was used up, if that stopped the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// Wall time in seconds.
    pub seconds: f64,
    /// A failure that is the machine's (disk, network, lock) rather than the pipeline's.
    pub machine_failure: bool,
}

impl RunSummary {
    /// Exit code of the run: 0 completed, 1 a node failed, 3 rejected rows or outputs held back, 4 budget used up, 5 a node
    /// failed because of the machine (disk, network, lock), 130 interrupted.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            _ if self.interrupted => 130,
            _ if self.machine_failure => 5,
            _ if self.failed > 0 => 1,
            _ if self.budget.is_some() => 4,
            _ if self.dead_letters > 0 || self.held_back > 0 => 3,
            _ => 0,
        }
    }
}

/// `3 cached, 2 ran, 0 failed`.
impl fmt::Display for RunSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cached, {} ran, {} failed", self.cached, self.finished, self.failed)
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins.
    RunStarted {
        /// The run.
        run: String,
        /// The pipeline's name.
        pipeline: String,
        /// Nodes in it.
        nodes: usize,
        /// Unix time in seconds.
        time: f64,
    },
    /// A node's result was known.
    NodeCached {
        /// The node.
        node: String,
        /// Operator.
        operator: String,
        /// Type of its default output (`chunk rows`, `index`).
        output: String,
        /// Rows at its default output.
        rows: u64,
        /// Bytes of its default output.
        bytes: u64,
        /// Rejected rows it holds.
        rejects: u64,
        /// The key of its result.
        key: Option<NodeKey>,
    },
    /// A node begins.
    NodeStarted {
        /// The node.
        node: String,
        /// Operator.
        operator: String,
        /// Why it runs.
        reasons: Vec<Reason>,
        /// Unix time in seconds.
        time: f64,
    },
    /// Another process computes the node; its result will be used.
    NodeWaiting {
        /// The node.
        node: String,
    },
    /// A node advances.
    NodeProgress {
        /// The node.
        node: String,
        /// Units done.
        done: u64,
        /// Units in all; 0 when unknown.
        total: u64,
        /// What is counted.
        unit: String,
        /// Of these, rows whose result was known.
        cached: u64,
        /// Calls to an endpoint so far.
        calls: u64,
        /// Tokens paid so far.
        tokens: u64,
        /// What that cost.
        cost: f64,
    },
    /// A line for the node's log.
    NodeLog {
        /// The node.
        node: String,
        /// The line.
        line: String,
    },
    /// A node's result is durable.
    NodeFinished {
        /// The node.
        node: String,
        /// Operator.
        operator: String,
        /// Type of its default output (`chunk rows`, `index`).
        output: String,
        /// Rows at its default output.
        rows: u64,
        /// Bytes of its default output.
        bytes: u64,
        /// Rows that failed.
        rejects: u64,
        /// Why most of them did: `kind: message`.
        #[serde(skip_serializing_if = "Option::is_none")]
        rejected_for: Option<String>,
        /// The key of its result.
        key: NodeKey,
        /// Of its rows, those whose result was known.
        cached_rows: u64,
        /// Calls to the outside.
        calls: u64,
        /// Prompt tokens paid.
        prompt_tokens: u64,
        /// Completion tokens paid.
        completion_tokens: u64,
        /// What that cost, at the prices that the params tell.
        cost: f64,
        /// Seconds it took.
        seconds: f64,
        /// Text for people.
        #[serde(skip_serializing_if = "String::is_empty")]
        summary: String,
    },
    /// Something was put where the user wants it (a file written out).
    Delivered {
        /// The node.
        node: String,
        /// Where it lies now.
        destination: String,
    },
    /// A node's outputs were not put in place: too many rows were lost before it, or none is left. What lies there stays.
    HeldBack {
        /// The node.
        node: String,
        /// Where they would go.
        destinations: Vec<String>,
        /// Why.
        reason: String,
    },
    /// A node failed.
    NodeFailed {
        /// The node.
        node: String,
        /// Operator.
        operator: String,
        /// What went wrong.
        message: String,
        /// How to mend it.
        help: Option<String>,
    },
    /// A node was not run.
    NodeSkipped {
        /// The node.
        node: String,
    },
    /// An endpoint has not said anything for a while, though calls wait for it.
    EndpointSilent {
        /// Its address.
        endpoint: String,
        /// For how long.
        seconds: f64,
        /// Calls that wait for it.
        waiting: usize,
    },
    /// An endpoint that was silent speaks again.
    EndpointHeard {
        /// Its address.
        endpoint: String,
    },
    /// The budget is used up: no new call is made, and the nodes that would need one stop.
    BudgetUsedUp {
        /// The limit, in words.
        limit: String,
    },
    /// The run ends.
    RunFinished(RunSummary),
}

impl Event {
    /// The texts in it that come from operators, and so perhaps from outside.
    pub fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::NodeLog { line, .. } => vec![line],
            Self::NodeFinished { summary, .. } => vec![summary],
            Self::Delivered { destination, .. } => vec![destination],
            Self::NodeFailed { message, help, .. } => std::iter::once(message).chain(help).collect(),
            Self::EndpointSilent { endpoint, .. } | Self::EndpointHeard { endpoint } => vec![endpoint],
            _ => Vec::new(),
        }
    }
}

/// Where events go. Called from many threads; must not block for long.
pub trait Reporter: Send + Sync {
    /// Takes one event.
    fn event(&self, event: &Event);
}
