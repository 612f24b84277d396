//! The record of a run: reports, counts and records the outcome of each node, and records the events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use serde::Serialize;

use crate::endpoint::{FailedCalls, Redactor, Usage};
use crate::error::{Blame, OperatorError};
use crate::events::{Event, RejectReason, Reporter, RunSummary};
use crate::execute::node::job::{Fresh, KnownResult};
use crate::execute::node::reject_share::reject_reasons;
use crate::execute::settings::unix_time;
use crate::fingerprint::Digest;
use crate::node_id::NodeId;
use crate::operator::Effect;
use crate::plan::{End, Loop, Node, NodeIndex, NotReached, Plan};
use crate::spec::{OnFailure, RowLimit};
use crate::store::{
    ArtifactType, CheckOutcome, NodeOutcome, NodeRun, OutputRecord, RunRecord, RunWriter, Store, StoreError, run_time,
};

/// Time between two recorded events of a node's progress. Nodes that take less have none.
const PROGRESS: Duration = Duration::from_secs(5);

/// The reporter, counters and records of one run.
pub(super) struct RunLog {
    store: Store,
    pub(super) record: RunRecord,
    pub(super) records: Arc<Mutex<RunWriter>>,
    pub(super) summary: RunSummary,
    spent_nanos: u64,
    /// Outcomes of checks by node, until the node is recorded.
    checks: BTreeMap<NodeId, Vec<CheckOutcome>>,
    /// Failed attempts at calls by node, until the node is recorded.
    failed_calls: BTreeMap<NodeId, FailedCalls>,
    /// Why rows of the run were rejected, most frequent first.
    reject_reasons: Vec<RejectReason>,
    /// By deciding node until it is recorded: the nodes of the round that its loop hands on.
    hands_on: BTreeMap<NodeId, Vec<NodeId>>,
    start: Instant,
    redactor: Redactor,
    /// Receives the events of the run and records them.
    pub(crate) reporter: Arc<dyn Reporter>,
}

impl RunLog {
    /// Starts the record of a run of `nodes` nodes.
    pub(crate) fn open(
        plan: &Plan,
        store: &Store,
        nodes: usize,
        limit: &RowLimit,
        fits: Option<Digest>,
        reporter: Arc<dyn Reporter>,
        redactor: &Redactor,
    ) -> Result<Self, StoreError> {
        let started = unix_time();
        let record = RunRecord {
            id: run_id(after_all(store, started)),
            pipeline: plan.name.clone(),
            file: plan.file.display().to_string(),
            params: plan.params.clone(),
            set: plan.overrides.set.clone(),
            params_files: plan.overrides.params_files.clone(),
            limit: limit.clone(),
            handed_on: plan.handed_on_by_name(),
            started,
            finished: None,
            exit: None,
            nodes,
            fits,
            ledger: None,
        };
        let records = Arc::new(Mutex::new(store.start_run(&record)?));
        let currency = plan.currency().unwrap_or_default();
        let summary = RunSummary { run: record.id.clone(), currency, ..RunSummary::default() };
        let (own, redactor) = (Arc::clone(&records), redactor.clone());
        let log = EventLog { inner: reporter, records: own, redactor: redactor.clone(), progress: Mutex::default() };
        Ok(Self {
            store: store.clone(),
            record,
            records,
            summary,
            spent_nanos: 0,
            checks: BTreeMap::new(),
            failed_calls: BTreeMap::new(),
            reject_reasons: Vec::new(),
            hands_on: BTreeMap::new(),
            start: Instant::now(),
            redactor,
            reporter: Arc::new(log),
        })
    }

    /// Reports the start of the run.
    pub(crate) fn begin(&self) {
        let (run, pipeline) = (self.record.id.clone(), self.record.pipeline.clone());
        self.reporter.event(&Event::RunStarted { run, pipeline, nodes: self.record.nodes, time: self.record.started });
    }

    /// Adds the calls, tokens and cost of a node, and its attempts that failed.
    pub(crate) fn count(&mut self, node: &Node, spent: &Usage, failed: FailedCalls) {
        self.summary.failed_calls += &failed;
        self.failed_calls.insert(node.id().to_owned(), failed);
        self.summary.calls += spent.calls;
        self.summary.service_calls += spent.service_calls;
        self.summary.prompt_tokens += spent.prompt_tokens;
        self.summary.completion_tokens += spent.completion_tokens;
        self.spent_nanos += spent.cost_nanos;
        self.summary.cost = Usage { cost_nanos: self.spent_nanos, ..Usage::default() }.cost();
    }

    /// Reports that the budget is used up, once per run.
    pub(super) fn budget_used_up(&mut self, limit: String) {
        if self.summary.budget.is_none() {
            self.reporter.event(&Event::BudgetUsedUp { limit: limit.clone() });
            self.summary.budget = Some(limit);
        }
    }

    /// Records a node that succeeded, and why its outputs are held back, if they are.
    pub(super) fn settled(&mut self, node: &Node, result: &KnownResult, why: Option<String>) -> Result<(), StoreError> {
        let (id, operator, figures) = (node.id().to_owned(), node.entry.name.to_owned(), result.figures.clone());
        let outputs = &result.outputs;
        let (output, rows, bytes) = default_output(node, outputs);
        let rejected = outputs.get("rejects").filter(|output| output.rows > 0);
        let rejects = rejected.map_or(0, |rejected| rejected.rows);
        self.summary.emptied += usize::from(is_emptied(node, outputs));
        let mut run = match result.fresh.as_deref() {
            None => {
                self.summary.cached += 1;
                let key = result.key;
                let event = Event::NodeCached { node: id, operator, output, rows, bytes, rejects, key, figures };
                self.reporter.event(&event);
                ended(node, NodeOutcome::Cached)
            }
            Some(Fresh { record, reasons, cached_rows, .. }) => {
                self.summary.finished += 1;
                if node.operator.declaration.effect == Effect::External {
                    self.summary.dead_letters += rejects;
                } else {
                    self.summary.rejects += rejects;
                }
                let mut rejected_for = rejected.map_or(Vec::new(), |rejected| reject_reasons(&self.store, rejected));
                RejectReason::add(&mut self.reject_reasons, &rejected_for);
                // The run counts all of them; an event has only the most frequent ones.
                rejected_for.truncate(RejectReason::MOST);
                self.reporter.event(&Event::NodeFinished {
                    output,
                    bytes,
                    node: id,
                    operator,
                    rows,
                    rejects,
                    rejected_for: rejected_for.first().map(ToString::to_string),
                    reject_reasons: rejected_for,
                    key: record.key,
                    cached_rows: *cached_rows,
                    calls: record.calls,
                    service_calls: record.service_calls,
                    failed_calls: self.failed_calls.remove(node.id()).unwrap_or_default(),
                    prompt_tokens: record.prompt_tokens,
                    completion_tokens: record.completion_tokens,
                    cost: record.usage().cost(),
                    seconds: record.seconds,
                    figures,
                    summary: record.summary.clone(),
                });
                NodeRun { reasons: reasons.clone(), seconds: record.seconds, ..ended(node, NodeOutcome::Finished) }
            }
        };
        if let Some(reason) = why.clone() {
            self.summary.held_back += 1;
            let (node, destinations) = (node.id().to_owned(), node.operator.declaration.destinations());
            self.reporter.event(&Event::HeldBack { node, destinations, reason });
            run.outcome = NodeOutcome::HeldBack;
        }
        self.note(NodeRun { key: result.key, outputs: outputs.clone(), error: why, ..run })
    }

    /// Records a failed node: one without a result, or one whose result failed a check or could not be checked.
    pub(super) fn failed(&mut self, node: &Node, error: &OperatorError, run: NodeRun) -> Result<(), StoreError> {
        self.summary.failed += 1;
        self.summary.machine_failure |= error.blame == Blame::Machine;
        let (id, operator) = (node.id().to_owned(), node.entry.name.to_owned());
        let (message, help) = (error.message.clone(), error.help.clone());
        self.reporter.event(&Event::NodeFailed { node: id, operator, message, help });
        let error = Some(self.redactor.strike(&error.message).into_owned());
        self.note(NodeRun { error, ..run })
    }

    /// Reports the outcomes of a node's checks; they are recorded with the node.
    pub(crate) fn checked(&mut self, node: &Node, outcomes: Vec<CheckOutcome>) {
        for failed in outcomes.iter().filter(|outcome| !outcome.passed) {
            self.summary.checks_held += usize::from(failed.check.on_failure == OnFailure::Hold);
            self.summary.checks_warned += usize::from(failed.check.on_failure == OnFailure::Warn);
        }
        self.reporter.event(&Event::NodeChecked { node: node.id().to_owned(), checks: outcomes.clone() });
        self.checks.insert(node.id().to_owned(), outcomes);
    }

    /// Reports that folders of a middle round were released.
    pub(crate) fn released(&mut self, node: &Node, bytes: u64) {
        self.summary.released += bytes;
        self.reporter.event(&Event::NodeReleased { node: node.id().to_owned(), bytes });
    }

    /// Records a node that did not run or was interrupted.
    pub(super) fn skipped(&mut self, run: NodeRun) -> Result<(), StoreError> {
        self.summary.skipped += 1;
        self.reporter.event(&Event::NodeSkipped { node: run.node.clone() });
        self.note(run)
    }

    /// Records what a loop hands on, now that this is known, and reports that it ended if rows ended it.
    pub(super) fn loop_ended(&mut self, plan: &Plan, repeats: &Loop) -> Result<(), StoreError> {
        self.record.handed_on = plan.handed_on_by_name();
        self.records.lock().unwrap_or_else(PoisonError::into_inner).describe(&self.record)?;
        if let Some(End { last, left_out, hands_on, why: Some(reason) }) = repeats.end.clone() {
            let repeats = repeats.id.clone();
            self.reporter.event(&Event::LoopEnded { repeats, round: last, left_out, reason, hands_on });
        }
        Ok(())
    }

    /// Notes what a loop hands on; it is recorded with the node that decided that.
    pub(crate) fn hands_on(&mut self, plan: &Plan, decision: NodeIndex) {
        let Some(repeats) = plan.decides(decision) else { return };
        let Some(end) = &repeats.end else { return };
        let ids = repeats.nodes(end.hands_on).iter().map(|index| plan[*index].id().to_owned()).collect();
        self.hands_on.insert(plan[decision].id().to_owned(), ids);
    }

    /// Records a node that does not run because a loop ended.
    pub(crate) fn ended(&mut self, node: &Node, end: &NotReached<'_>) -> Result<(), StoreError> {
        self.summary.ended += 1;
        let (id, repeats) = (node.id().to_owned(), end.repeats.id.clone());
        let (needs, reason) = (end.needs.map(ToString::to_string), end.to_string());
        self.reporter.event(&Event::NodeEnded { node: id, repeats, needs, reason });
        let error = Some(self.redactor.strike(&end.to_string()).into_owned());
        self.note(NodeRun { error, ..ended(node, NodeOutcome::Ended) })
    }

    fn note(&mut self, mut run: NodeRun) -> Result<(), StoreError> {
        run.checks = self.checks.remove(&run.node).unwrap_or_default();
        run.hands_on = self.hands_on.remove(&run.node).unwrap_or_default();
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.node(&run)?;
        // A flush for each of thousands of cached nodes would take long; the next node that starts flushes them, too.
        if matches!(run.outcome, NodeOutcome::Cached | NodeOutcome::Ended) { Ok(()) } else { records.flush() }
    }

    /// Reports the end of the run.
    pub(crate) fn end(&mut self) {
        self.summary.seconds = self.start.elapsed().as_secs_f64();
        self.summary.reject_reasons = self.reject_reasons.iter().take(RejectReason::MOST).cloned().collect();
        self.reporter.event(&Event::RunFinished(self.summary.clone()));
        self.record.finished = Some(unix_time());
        self.record.exit = Some(i32::from(self.summary.exit_code()));
    }

    /// Writes the final record and shares it.
    pub(crate) fn close(self, outcome: Result<(), StoreError>) -> Result<RunSummary, StoreError> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        // Also if the run has failed: its record says what was done.
        records.finish(&self.record)?;
        drop(records);
        let shared = self.store.share_run(&self.record.id);
        outcome.and(shared)?;
        Ok(self.summary)
    }
}

/// A record with this outcome and all other fields empty.
pub(super) fn ended(node: &Node, outcome: NodeOutcome) -> NodeRun {
    NodeRun {
        node: node.id().to_owned(),
        operator: node.entry.name.to_owned(),
        key: None,
        outcome,
        reasons: Vec::new(),
        outputs: IndexMap::new(),
        error: None,
        seconds: 0.0,
        preimage: None,
        checks: Vec::new(),
        hands_on: Vec::new(),
    }
}

/// Whether a node rejected all its rows, so that the nodes after it work on nothing. Nodes that pay do not count: their
/// failed rows are reported in any case.
fn is_emptied(node: &Node, outputs: &IndexMap<String, OutputRecord>) -> bool {
    let pays = node.operator.declaration.effect == Effect::External;
    let lost = outputs.get("rejects").is_some_and(|rejects| rejects.rows > 0);
    let tables = outputs
        .iter()
        .filter(|(port, output)| *port != "rejects" && matches!(output.artifact_type, ArtifactType::Rows { .. }));
    let rows: Vec<u64> = tables.map(|(_, output)| output.rows).collect();
    !pays && lost && !rows.is_empty() && rows.iter().all(|rows| *rows == 0)
}

/// Returns type, rows and bytes of a node's default output.
fn default_output(node: &Node, outputs: &IndexMap<String, OutputRecord>) -> (String, u64, u64) {
    let port = node.default_output();
    let record = port.and_then(|port| outputs.get(port));
    let output = port.and_then(|port| node.outputs.get(port)).map(ToString::to_string).unwrap_or_default();
    (output, record.map_or(0, |record| record.rows), record.map_or(0, |record| record.bytes))
}

/// Returns a start time after all runs of the store, so that a clock set back does not make this run look old. Imported
/// runs do not count: they used another clock.
fn after_all(store: &Store, started: f64) -> f64 {
    let ids = store.run_ids();
    let newest = ids.iter().rev().filter(|id| !store.is_imported(id)).find_map(|id| run_time(id));
    newest.map_or(started, |newest| if newest < started { started } else { newest + 2.0 / 65_536.0 })
}

/// Returns a run id: a date. Ids sort in the order in which runs started, even if the clock is set back.
fn run_id(started: f64) -> String {
    let moment = chrono::DateTime::from_timestamp(started as i64, 0).unwrap_or_default().format("%Y%m%d-%H%M%S");
    // Ids also sort within a second. The random number separates ids of the same moment: two containers can have the
    // same process id.
    let (fraction, random) = ((started.fract() * 65_536.0) as u32, rand::random::<u16>());
    format!("{moment}-{fraction:04x}{random:04x}")
}

/// Forwards events and records them with the run, without the secrets that operators may have put into them.
struct EventLog {
    inner: Arc<dyn Reporter>,
    records: Arc<Mutex<RunWriter>>,
    redactor: Redactor,
    /// When the progress of a node was last recorded, or first reported.
    progress: Mutex<BTreeMap<NodeId, Instant>>,
}

impl EventLog {
    /// Whether an event of progress is due to be recorded.
    fn is_due(&self, node: &NodeId) -> bool {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        // The first one only starts the clock: short nodes have no recorded progress.
        let last = progress.entry(node.clone()).or_insert_with(Instant::now);
        let is_due = last.elapsed() >= PROGRESS;
        if is_due {
            *last = Instant::now();
        }
        is_due
    }
}

/// An event with a time, unless the event already has one.
#[derive(Serialize)]
struct Timed<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(flatten)]
    event: &'e Event,
}

impl Reporter for EventLog {
    fn event(&self, event: &Event) {
        let mut event = event.clone();
        // Before it is shown or written: operators put texts of programs and servers into events.
        self.redactor.clean_all(event.texts());
        let event = &event;
        self.inner.event(event);
        let mut is_progress = false;
        if let Event::NodeProgress { node, .. } = event {
            is_progress = true;
            if !self.is_due(node) {
                return;
            }
        }
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let has_time = matches!(event, Event::RunStarted { .. } | Event::NodeStarted { .. });
        let mut recorded = records.event(&Timed { time: (!has_time).then(unix_time), event });
        // Whoever follows the run sees at once what goes on.
        if is_progress || matches!(event, Event::NodeStarted { .. }) {
            recorded = recorded.and_then(|()| records.flush());
        }
        if let Err(error) = recorded {
            tracing::warn!("cannot record an event: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_are_dates() {
        assert!(run_id(1_795_180_000.0).starts_with("20261120-"));
        assert!(run_id(1_795_180_000.25) < run_id(1_795_180_000.5));
        assert_eq!(run_time(&run_id(1_795_180_000.25)), Some(1_795_180_000.25));
    }

    #[test]
    fn ids_of_one_moment_differ_in_one_process_too() {
        let ids: std::collections::BTreeSet<String> = (0..16).map(|_| run_id(1_795_180_000.25)).collect();
        assert!(ids.len() > 1, "{ids:?}");
    }

    #[test]
    fn imported_runs_do_not_shift_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let run = |id: &str| {
            let folder = store.root().join("runs").join(id);
            std::fs::create_dir_all(&folder).unwrap();
            folder
        };
        let mark = run("20991120-131502-00000000").join("imported");
        std::fs::write(&mark, "").unwrap();
        run("20261120-131502-00000000");
        let (now, after) = (1_795_190_000.0, |now: f64| after_all(&store, now) - now);
        assert!(after(now) < 1.0);
        std::fs::remove_file(mark).unwrap();
        assert!(after(now) > 1e9);
    }
}
