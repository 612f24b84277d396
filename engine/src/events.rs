//! Events of a run: one stream for the terminal, for `--json`, for the run's log and for other programs. [`Lines`]
//! gives them as lines of text.

use std::collections::BTreeMap;
use std::fmt;

use searchmill_schemas::Reject;
use serde::Serialize;

use crate::endpoint::FailedCalls;
use crate::fingerprint::{NodeKey, Reason};
use crate::node_id::{NodeId, Round};
use crate::store::CheckOutcome;

/// Why rows were rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectReason {
    /// Number of rows.
    pub rows: u64,
    /// Kind of failure.
    pub kind: String,
    /// Message of the first of them. Messages that differ only in their numbers are one reason.
    pub message: String,
    /// Where the user's code raised it: the last frame of a traceback, `steps/clean.py:12 in shorten: return int(x)`.
    /// Exceptions of one type raised there are one reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl RejectReason {
    /// Number of reasons that are reported (at most).
    pub const MOST: usize = 3;

    /// Number of reasons that are kept to be added up (at most).
    pub(crate) const KEPT: usize = 64;

    /// The reason of one rejected row.
    pub(crate) fn of(reject: Reject) -> Self {
        let place = reject.detail.as_deref().and_then(last_frame);
        Self { rows: 1, kind: reject.kind, message: reject.message, place }
    }

    /// Returns what reasons that are one have in common.
    pub(crate) fn group(&self) -> (String, String) {
        let what = match &self.place {
            // Messages of exceptions quote the values of their row.
            Some(place) => format!("{} {place}", self.message.split(':').next().unwrap_or_default()),
            None => numberless(&self.message),
        };
        (self.kind.clone(), what)
    }

    /// Adds reasons to others, most frequent first.
    pub(crate) fn add(reasons: &mut Vec<Self>, more: &[Self]) {
        for one in more {
            let group = one.group();
            match reasons.iter_mut().find(|known| known.group() == group) {
                Some(known) => known.rows += one.rows,
                None => reasons.push(one.clone()),
            }
        }
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.rows));
        // Each row may have a message of its own: the list would grow with the rows.
        reasons.truncate(Self::KEPT);
    }
}

/// Returns the last frame of a Python traceback: file, line and function, and the line of code.
fn last_frame(detail: &str) -> Option<String> {
    let mut found = None;
    let mut lines = detail.lines().peekable();
    while let Some(line) = lines.next() {
        let frame = line.trim_start().strip_prefix("File \"");
        let Some((file, rest)) = frame.and_then(|frame| frame.split_once("\", line ")) else { continue };
        // The frame of a syntax error names no function.
        let (number, function) = rest.split_once(", in ").unwrap_or((rest, ""));
        // Without the source file, Python prints no line of code: the next line is another frame.
        let code = lines.peek().map(|code| code.trim()).filter(|code| !code.is_empty() && !code.starts_with("File \""));
        let function = if function.is_empty() { String::new() } else { format!(" in {function}") };
        let code = code.map_or_else(String::new, |code| format!(": {code}"));
        // A later frame replaces it: the last one is where the exception was raised.
        found = Some(format!("{file}:{}{function}{code}", number.trim()));
    }
    found
}

/// Formats `kind: message (place)`.
impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

/// Returns a text with `0` in place of each number.
fn numberless(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for ch in text.chars() {
        match ch.is_ascii_digit() {
            // `9 rows` and `10 rows` become the same text.
            true if plain.ends_with('0') => {}
            true => plain.push('0'),
            false => plain.push(ch),
        }
    }
    plain
}

/// Summary of a finished run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunSummary {
    /// Id of the run, as the views of a session take it.
    pub run: String,
    /// Nodes with a cached result.
    pub cached: usize,
    /// Nodes that ran.
    pub finished: usize,
    /// Nodes that failed.
    pub failed: usize,
    /// Nodes not run because an upstream node failed or the run was stopped.
    pub skipped: usize,
    /// Nodes not run because a loop ended before their round.
    pub ended: usize,
    /// Rows rejected by external nodes of this run.
    pub dead_letters: u64,
    /// Nodes whose outputs were not delivered because too many rows were lost upstream.
    pub held_back: usize,
    /// Failed checks that hold back what is delivered behind them.
    pub checks_held: usize,
    /// Failed checks that are only reported.
    pub checks_warned: usize,
    /// Rows rejected by other nodes of this run.
    pub rejects: u64,
    /// The most frequent reasons for which rows of this run were rejected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reject_reasons: Vec<RejectReason>,
    /// Nodes, cached ones included, that rejected all their rows without paying for them.
    pub emptied: usize,
    /// Whether the run was told to stop.
    pub interrupted: bool,
    /// External calls of this run, failed attempts included.
    pub calls: u64,
    /// Those of them that asked no model: of tools, functions and rerankers.
    #[serde(skip_serializing_if = "crate::endpoint::is_zero")]
    pub service_calls: u64,
    /// Attempts at them that failed.
    #[serde(flatten)]
    pub failed_calls: FailedCalls,
    /// Prompt tokens paid in this run.
    pub prompt_tokens: u64,
    /// Completion tokens paid in this run.
    pub completion_tokens: u64,
    /// Cost at the pipeline's prices.
    pub cost: f64,
    /// Currency of the prices.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub currency: String,
    /// The budget limit that stopped the run, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// Bytes of folders of middle rounds that were released.
    #[serde(skip_serializing_if = "crate::endpoint::is_zero")]
    pub released: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Whether a failure is the machine's (disk, network, lock) and not the pipeline's.
    pub machine_failure: bool,
}

impl RunSummary {
    /// Exit code of the run, the first of these that is true: 130 interrupted, 5 a node failed because of the machine
    /// (disk, network, lock), 1 a node or a check failed, 4 budget used up, 3 completed, but rows of external nodes
    /// failed, a node rejected all its rows, or outputs were held back, 0 completed.
    pub fn exit_code(&self) -> u8 {
        match self {
            // As a shell reports SIGINT: 128 + 2.
            _ if self.interrupted => 130,
            // Before 1: the same run may succeed later, or on another machine.
            _ if self.machine_failure => 5,
            _ if self.failed > 0 => 1,
            _ if self.budget.is_some() => 4,
            _ if self.dead_letters > 0 || self.held_back > 0 || self.emptied > 0 || self.checks_held > 0 => 3,
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
    /// The run starts.
    RunStarted {
        /// The run.
        run: String,
        /// The pipeline's name.
        pipeline: String,
        /// Number of nodes.
        nodes: usize,
        /// Unix time in seconds.
        time: f64,
    },
    /// A node did not run, because the store has its result.
    NodeCached {
        /// The node.
        node: NodeId,
        /// Operator.
        operator: String,
        /// Type of its default output (`chunk rows`, `index`).
        output: String,
        /// Rows at its default output.
        rows: u64,
        /// Bytes of its default output.
        bytes: u64,
        /// Rejected rows in the result.
        rejects: u64,
        /// The key of its result.
        key: Option<NodeKey>,
        /// Figures that the operator recorded.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        figures: BTreeMap<String, f64>,
    },
    /// A node starts.
    NodeStarted {
        /// The node.
        node: NodeId,
        /// Operator.
        operator: String,
        /// Why it runs.
        reasons: Vec<Reason>,
        /// Unix time in seconds.
        time: f64,
    },
    /// Another process, or another node of the run with the same key, computes the result; it will be used.
    NodeWaiting {
        /// The node.
        node: NodeId,
    },
    /// Progress of a node.
    NodeProgress {
        /// The node.
        node: NodeId,
        /// Units done.
        done: u64,
        /// Total units (0 = unknown).
        total: u64,
        /// Name of the unit.
        unit: String,
        /// Rows with a cached result.
        cached: u64,
        /// Calls to an endpoint so far.
        calls: u64,
        /// Those of them that asked no model: of tools, functions and rerankers.
        #[serde(skip_serializing_if = "crate::endpoint::is_zero")]
        service_calls: u64,
        /// Tokens paid so far.
        tokens: u64,
        /// Cost so far.
        cost: f64,
    },
    /// A line for the node's log.
    NodeLog {
        /// The node.
        node: NodeId,
        /// The line.
        line: String,
    },
    /// A node's result is stored durably.
    NodeFinished {
        /// The node.
        node: NodeId,
        /// Operator.
        operator: String,
        /// Type of its default output (`chunk rows`, `index`).
        output: String,
        /// Rows at its default output.
        rows: u64,
        /// Bytes of its default output.
        bytes: u64,
        /// Rejected rows.
        rejects: u64,
        /// Most frequent reason for rejection: `kind: message`.
        #[serde(skip_serializing_if = "Option::is_none")]
        rejected_for: Option<String>,
        /// The most frequent reasons for rejection.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reject_reasons: Vec<RejectReason>,
        /// The key of its result.
        key: NodeKey,
        /// Rows with a cached result.
        cached_rows: u64,
        /// External calls, failed attempts included.
        calls: u64,
        /// Those of them that asked no model: of tools, functions and rerankers.
        #[serde(skip_serializing_if = "crate::endpoint::is_zero")]
        service_calls: u64,
        /// Attempts at them that failed.
        #[serde(flatten)]
        failed_calls: FailedCalls,
        /// Prompt tokens paid.
        prompt_tokens: u64,
        /// Completion tokens paid.
        completion_tokens: u64,
        /// Cost at the prices from the params.
        cost: f64,
        /// Duration in seconds.
        seconds: f64,
        /// Figures that the operator recorded.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        figures: BTreeMap<String, f64>,
        /// Human-readable summary.
        #[serde(skip_serializing_if = "String::is_empty")]
        summary: String,
    },
    /// The checks of a node's result were evaluated.
    NodeChecked {
        /// The node.
        node: NodeId,
        /// Their outcomes.
        checks: Vec<CheckOutcome>,
    },
    /// An output was delivered to its destination.
    Delivered {
        /// The node.
        node: NodeId,
        /// The destination.
        destination: String,
    },
    /// A node's outputs were not delivered: too many rows were lost upstream, or none is left. Existing files stay.
    HeldBack {
        /// The node.
        node: NodeId,
        /// The intended destinations.
        destinations: Vec<String>,
        /// The reason.
        reason: String,
    },
    /// A node failed.
    NodeFailed {
        /// The node.
        node: NodeId,
        /// Operator.
        operator: String,
        /// The error.
        message: String,
        /// How to fix it.
        help: Option<String>,
    },
    /// A node was not run.
    NodeSkipped {
        /// The node.
        node: NodeId,
    },
    /// A loop ended because its rows say so.
    LoopEnded {
        /// The loop.
        repeats: String,
        /// Its last round.
        round: Round,
        /// Number of later rounds, which do not run.
        left_out: usize,
        /// Why it ended.
        reason: String,
        /// The round whose outputs it hands on.
        hands_on: Round,
    },
    /// A node was not run because a loop had ended.
    NodeEnded {
        /// The node.
        node: NodeId,
        /// The loop.
        repeats: String,
        /// The node of a later round that this node needs, directly or through another node. `None` if this node is itself
        /// of a later round.
        needs: Option<String>,
        /// What it needs, and why the loop ended.
        reason: String,
    },
    /// The folders of a middle round were released, as `keep:` of its loop says.
    NodeReleased {
        /// The node.
        node: NodeId,
        /// Their size.
        bytes: u64,
    },
    /// A call failed and is repeated.
    CallRetried {
        /// The node.
        node: NodeId,
        /// Number of the next attempt, from 2.
        attempt: u32,
        /// Number of attempts (at most).
        of: u32,
        /// Seconds until then.
        seconds: f64,
        /// HTTP status, or kind of failure, of the last attempt.
        reason: String,
        /// Its error message.
        message: String,
    },
    /// An endpoint has not responded for a while, although calls wait for it.
    EndpointSilent {
        /// Its address.
        endpoint: String,
        /// Seconds without a response.
        seconds: f64,
        /// Number of waiting calls.
        waiting: usize,
    },
    /// A silent endpoint responds again.
    EndpointHeard {
        /// Its address.
        endpoint: String,
    },
    /// The budget is used up: no new calls are made, and nodes that need one stop.
    BudgetUsedUp {
        /// The limit, as text.
        limit: String,
    },
    /// The run ends.
    RunFinished(RunSummary),
}

impl Event {
    /// Returns the texts that come from operators and may contain external content.
    pub fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::NodeLog { line, .. } => vec![line],
            Self::LoopEnded { reason, .. } | Self::NodeEnded { reason, .. } => vec![reason],
            Self::NodeFinished { summary, rejected_for, reject_reasons, .. } => {
                let reasons = reject_reasons.iter_mut().map(|reason| &mut reason.message);
                std::iter::once(summary).chain(rejected_for).chain(reasons).collect()
            }
            Self::RunFinished(summary) => summary.reject_reasons.iter_mut().map(|reason| &mut reason.message).collect(),
            Self::CallRetried { message, .. } => vec![message],
            Self::Delivered { destination, .. } => vec![destination],
            Self::NodeChecked { checks, .. } => checks.iter_mut().map(|check| &mut check.found).collect(),
            Self::NodeFailed { message, help, .. } => std::iter::once(message).chain(help).collect(),
            Self::EndpointSilent { endpoint, .. } | Self::EndpointHeard { endpoint } => vec![endpoint],
            _ => Vec::new(),
        }
    }
}

/// Receives events: from many threads, also at the same time. It must not block for long.
///
/// The first event is [`Event::RunStarted`], the last one [`Event::RunFinished`]. The events of one node come in their
/// order; those of different nodes mix.
pub trait Reporter: Send + Sync {
    /// Receives one event.
    fn event(&self, event: &Event);
}

/// Gives a line to a callback for every node that is cached, ran or failed, for failed checks, and for every output that
/// is written or held back.
///
/// `Lines(|line: &str| println!("{line}"))` prints them.
pub struct Lines<F>(pub F);

impl<F: Fn(&str) + Send + Sync> Reporter for Lines<F> {
    fn event(&self, event: &Event) {
        if let Some(line) = line(event) {
            (self.0)(&line);
        }
    }
}

fn line(event: &Event) -> Option<String> {
    match event {
        Event::NodeCached { node, rows, .. } => Some(format!("cached {node}: {rows} rows")),
        Event::NodeFinished { node, rows, rejects, .. } => {
            Some(format!("ran    {node}: {rows} rows, {rejects} rejects"))
        }
        Event::NodeFailed { node, message, .. } => Some(format!("failed {node}: {message}")),
        Event::NodeChecked { node, checks } => {
            let failed: Vec<String> = checks.iter().filter(|check| !check.passed).map(ToString::to_string).collect();
            (!failed.is_empty()).then(|| format!("check  {node}: {}", failed.join("; ")))
        }
        Event::HeldBack { node, reason, .. } => Some(format!("held   {node}: {reason}")),
        Event::Delivered { node, destination } => Some(format!("wrote  {node}: {destination}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_of_one_type_and_place_are_one_reason() {
        let raised = |message: &str, line: u32| {
            let frame =
                |file: &str, line: u32, code: &str| format!("  File \"{file}\", line {line}, in step\n    {code}\n");
            let trace = format!(
                "Traceback (most recent call last):\n{}{}{message}",
                frame("steps/clean.py", 3, "return inner(row)"),
                frame("steps/inner.py", line, "return int(row[\"x\"])"),
            );
            let (id, kind) = ("a".to_owned(), "exception".to_owned());
            RejectReason::of(Reject { id, kind, message: message.to_owned(), attempts: 1, detail: Some(trace) })
        };
        let mut reasons = Vec::new();
        let all = [
            raised("ValueError: bad 'a'", 7),
            raised("ValueError: bad 'b'", 7),
            raised("ValueError: bad 'b'", 9),
            raised("KeyError: 'x'", 7),
        ];
        RejectReason::add(&mut reasons, &all);
        let told: Vec<(u64, String)> = reasons.iter().map(|reason| (reason.rows, reason.to_string())).collect();
        let place = "steps/inner.py:7 in step: return int(row[\"x\"])";
        assert_eq!(told[0], (2, format!("exception: ValueError: bad 'a' ({place})")));
        assert_eq!(told.len(), 3);
        assert_eq!(last_frame("the last response of a model"), None);
    }
}
