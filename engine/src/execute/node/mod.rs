//! The life of a node. [`live`] is one function that reads from top to bottom:
//!
//! decide → begin → lease → compute → record → check → deliver → read what it decided about its loop.
//!
//! The functions of these stages follow in this order. All that the node reads is settled before it starts, so it works
//! on a snapshot ([`Upstream`]) and shares nothing with other nodes but the [`Run`]. The driver gets one [`NodeDone`] at
//! the end. It does what needs the whole: records the node, settles the plan, releases folders, schedules, and starts
//! nodes again.
//!
//! `job` has what the stages work with. `executor` runs the kernel (here or in a `worker`, with the node's `service`s
//! and `endpoints`). `lease_check` looks whether this machine may still call. `result_checks`, `reject_share` and
//! `deliver` come after the result is known.

pub(super) mod endpoints;
pub(super) mod job;
mod lease_check;
pub(super) mod worker;
mod service;
mod executor;
pub(super) mod deliver;
pub(super) mod reject_share;
mod result_checks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::deliver::{Delivery, deliver, hands_over};
use self::executor::{Task, blocking, executor_of};
use self::job::{Ending, Fresh, KnownResult, NodeJob, Ran, Run, Upstream};
use self::lease_check::LeaseCheck;
use self::result_checks::evaluate;
use self::service::Services;
use super::decide::loop_decision::{LoopDecision, is_open, read_decision};
use super::decide::{Decider, Decision, Known, Look, Lookup, Pending, has_floor, look_up};
use super::kernels::kernel_run::{RowsRun, WatchedPieces, unchanged};
use super::settings::progress::NodeProgress;
use super::settings::unix_time;
use crate::endpoint::{FailedCalls, Usage};
use crate::error::{Blame, OperatorError};
use crate::events::Event;
use crate::fingerprint::{Digest, NodeKey, Reason, SourceProblem};
use crate::operator::{Computed, ContextParts, Effect, PortType, ProgressSink, TreeKind};
use crate::plan::NodeIndex;
use crate::spec::OnFailure;
use crate::store::{
    Blocks, CheckOutcome, Checkpoint, Damage, KeptPieces, Lease, NodeResult, NodeRun, Origin, StoreError,
};

/// Pause before a changing source is read again.
const WRITERS_PAUSE: Duration = Duration::from_millis(300);

/// What is decided about a node.
pub(super) enum Decided {
    /// Its result is known: from the store, or from a test.
    Known(KnownResult),
    /// It must run, or cannot.
    Open(Decision),
}

impl From<Decision> for Decided {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Frozen(last) => {
                Self::Known(KnownResult { key: last.key, outputs: last.outputs, ..KnownResult::default() })
            }
            Decision::Cached { result, .. } => Self::Known(KnownResult::stored(*result)),
            other => Self::Open(other),
        }
    }
}

/// The outcome of a node.
pub(super) struct NodeDone {
    pub(super) index: NodeIndex,
    /// Its key, once that is known.
    pub(super) key: Option<NodeKey>,
    /// Why its kernel ran, if it did.
    pub(super) reasons: Vec<Reason>,
    /// What it cost, if a result had to be produced.
    pub(super) cost: Option<Cost>,
    /// The outcomes of its checks, without secrets, if it has any and they were evaluated.
    pub(super) checks: Option<Vec<CheckOutcome>>,
    pub(super) outcome: Result<Success, Ending>,
}

/// What the driver makes known of a node whose result is known, checked and delivered.
pub(super) struct Success {
    pub(super) result: KnownResult,
    pub(super) delivery: Delivery,
    /// The failed check that holds back what is delivered behind it.
    pub(super) holds: Option<String>,
    /// What it decided about its loop, if it does.
    pub(super) decision: Option<LoopDecision>,
}

/// What an attempt cost.
#[derive(Default)]
pub(super) struct Cost {
    /// Calls, tokens and money, also if it failed.
    pub(super) spent: Usage,
    /// Attempts at calls that failed.
    pub(super) failed_calls: FailedCalls,
    /// Rows that were not asked because a budget was used up.
    pub(super) unasked: u64,
    pub(super) seconds: f64,
}

/// Runs a node from the decision about it (`None`: it is decided here, with that `look`) to its delivery.
pub(super) async fn live(
    run: Arc<Run>,
    index: NodeIndex,
    decided: Option<Decided>,
    look: Look,
    upstream: Upstream,
) -> NodeDone {
    let outcome = Err(Ending::NotStarted);
    let mut done = NodeDone { index, key: None, reasons: Vec::new(), cost: None, checks: None, outcome };
    done.outcome = stages(run, decided, look, Arc::new(upstream), &mut done).await;
    done
}

/// Goes through the stages of a node. What is known when a stage ends early is left in `done`.
async fn stages(
    run: Arc<Run>,
    decided: Option<Decided>,
    look: Look,
    upstream: Arc<Upstream>,
    done: &mut NodeDone,
) -> Result<Success, Ending> {
    let index = done.index;
    let node = run.node(index);

    // Decide: on another thread, because that may read files and wait for the network.
    let decided = if let Some(decided) = decided {
        decided
    } else {
        let (run, upstream) = (Arc::clone(&run), Arc::clone(&upstream));
        let decision = blocking(move || Ok(decide(&run, index, &upstream.known, look))).await;
        decision.map_err(Ending::Failed)?.map_err(Ending::StoreFailed)?.into()
    };

    // Produce the result, if it is not known.
    let result = match decided {
        Decided::Known(result) => result,
        Decided::Open(decision) => obtain(&run, decision, &upstream.known, done).await?,
    };
    done.key = result.key;
    let result = Arc::new(result);

    // Check: before anything is delivered.
    let mut holds = None;
    if has_checks(&run, index) {
        let (own, of, before) = (Arc::clone(&run), Arc::clone(&result), Arc::clone(&upstream));
        let outcomes = match blocking(move || evaluate(&own, index, &of, &before)).await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(damage)) => return Err(Ending::DamagedOutput(damage)),
            Err(error) => return Err(unchecked(Arc::unwrap_or_clone(result), error)),
        };
        let failed = failed_checks(&outcomes, OnFailure::Fail);
        holds = failed_checks(&outcomes, OnFailure::Hold);
        done.checks = Some(outcomes);
        if let Some(which) = failed {
            let id = node.id();
            let help = format!("the result is stored, and nothing after it ran; `searchmill show {id}` shows it");
            let error = OperatorError::data(format!("a check failed: {which}")).with_help(help);
            return Err(Ending::CheckFailed(Arc::unwrap_or_clone(result), error));
        }
    }
    let holds = holds.map(|which| format!("a check of `{}` failed: {which}", node.id()));

    // Deliver, unless a check or lost rows hold the outputs back.
    let mut delivery = Delivery::Done(Vec::new());
    if hands_over(node) {
        let (own, of, before, check) = (Arc::clone(&run), Arc::clone(&result), Arc::clone(&upstream), holds.clone());
        delivery = match blocking(move || deliver(&own, index, &of, &before, check)).await {
            Ok(delivery) => delivery,
            Err(error) if error.blame == Blame::Cancelled => {
                return Err(Ending::Interrupted(Arc::unwrap_or_clone(result)));
            }
            Err(error) => return Err(Ending::Undelivered(error)),
        };
    }

    // Read what it decided about its loop. What cannot be read is computed again.
    let mut decision = None;
    if is_open(&run.plan, index) {
        let (own, of) = (Arc::clone(&run), Arc::clone(&result));
        let read = blocking(move || read_decision(&own.plan, &own.store, index, &of.outputs)).await;
        decision = Some(read.map_err(|error| {
            tracing::warn!("{}", error.message);
            Ending::DamagedOutput(Damage::Corrupt)
        })?);
    }
    Ok(Success { result: Arc::unwrap_or_clone(result), delivery, holds, decision })
}

/// Decides about a node, given the outputs of its dependencies. Fetches files that the key needs.
pub(super) fn decide(run: &Run, index: NodeIndex, known: &Known, look: Look) -> Result<Decision, StoreError> {
    let request = run.options.request();
    let decider = Decider { plan: &run.plan, store: &run.store, request, history: &run.history };
    let decided = decider.decide(index, known, &run.sources, look)?;
    if !matches!(decided, Decision::Broken(SourceProblem::NotFetched(_))) {
        return Ok(decided);
    }
    let node = run.node(index);
    match node.operator.declaration.fetch(&run.bare_context(node)) {
        Ok(()) => decider.decide(index, known, &run.sources, look),
        Err(error) => Ok(Decision::Unfetched(error)),
    }
}

/// Produces the result of a node that must run; ends it if it cannot.
async fn obtain(run: &Arc<Run>, decision: Decision, known: &Known, done: &mut NodeDone) -> Result<KnownResult, Ending> {
    match &decision {
        Decision::Unfetched(error) if error.blame == Blame::Cancelled => return Err(Ending::NotStarted),
        Decision::Broken(SourceProblem::Stopped) | Decision::Run(_) if run.stop.is_draining() => {
            return Err(Ending::NotStarted);
        }
        _ => {}
    }
    // Nothing starts on a store that has lost its place, whatever was decided.
    run.store.sound().map_err(|error| Ending::Failed(error.into()))?;
    let pending = startable(decision).map_err(Ending::Failed)?;
    (done.key, done.reasons) = (Some(pending.key), pending.reasons.clone());
    // Recorded and flushed before any work: a killed run leaves a record of what it had started.
    let (node, preimage) = (run.node(done.index), pending.preimage.clone());
    let begun = NodeRun::begun(node.id(), node.entry.name, pending.key, pending.reasons.clone(), preimage);
    run.begin(&begun).map_err(Ending::StoreFailed)?;
    let (produced, cost) = produce(job(run, done.index, *pending, known)).await;
    done.cost = Some(cost);
    produced
}

/// Returns the pending node, or why it cannot run. Cached results are settled before.
fn startable(decision: Decision) -> Result<Box<Pending>, OperatorError> {
    match decision {
        Decision::Run(pending) => Ok(pending),
        Decision::Held(_) => {
            let error = OperatorError::pipeline("it was not chosen to run, and its result is not in the store");
            Err(error.with_help("run it first, or omit `--from` and `--only`"))
        }
        Decision::Broken(SourceProblem::Stopped) => {
            Err(OperatorError::machine("a source cannot be read: the file system timed out"))
        }
        Decision::Broken(problem @ SourceProblem::Changing(_)) => {
            Err(OperatorError::machine(problem.to_string()).with_help("run it again when nothing writes to that place"))
        }
        Decision::Broken(problem) => Err(OperatorError::pipeline(problem.to_string())),
        Decision::Unfetched(error) | Decision::Misfit(error) => Err(error),
        Decision::Waits { .. } | Decision::Frozen(_) | Decision::Cached { .. } => {
            Err(OperatorError::engine("the inputs of the node are unknown"))
        }
    }
}

fn job(run: &Arc<Run>, index: NodeIndex, pending: Pending, known: &Known) -> NodeJob {
    let Pending { parts, key, preimage, reasons } = pending;
    let node = run.node(index);
    let recall = !reasons.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for input in &node.inputs {
        inputs.extend(known.get(&input.node).and_then(|outputs| outputs.get(&input.output)).cloned());
    }
    let session = run.endpoints.session(node);
    let calls = run.endpoints.calls(node, &parts, &run.store);
    let observed = run.endpoints.observed(node, &parts, &run.store);
    NodeJob { run: Arc::clone(run), index, key, preimage, parts, inputs, reasons, recall, session, calls, observed }
}

/// Produces the result of a node whose inputs are known.
async fn produce(job: NodeJob) -> (Result<KnownResult, Ending>, Cost) {
    let start = Instant::now();
    let (paid, attempts) = (Arc::clone(&job.session.node), Arc::clone(&job.session.attempts));
    let produced = attempt(job, start).await;
    let (spent, unasked) = match &produced {
        Ok(KnownResult { fresh: Some(fresh), .. }) => (fresh.record.usage(), fresh.unasked),
        Ok(_) => (Usage::default(), 0),
        Err(_) => (paid.spent(), 0),
    };
    let cost = Cost { spent, failed_calls: attempts.so_far(), unasked, seconds: start.elapsed().as_secs_f64() };
    (produced, cost)
}

async fn attempt(job: NodeJob, start: Instant) -> Result<KnownResult, Ending> {
    // From here on, no other process computes this key.
    let lease = Arc::new(take_lease(&job).await.map_err(Ending::Failed)?);
    // Under the lease: what another process recorded before it gave the lease back is seen here.
    let looked = blocking(move || look_again(&job).map(|known| (job, known))).await;
    let mut job = match looked.map_err(Ending::Failed)? {
        (job, None) => job,
        (_, Some(known)) => return known,
    };
    let asks = job.node().operator.declaration.pays();
    let lease_check = LeaseCheck::new(&job.run.store, job.key, Arc::clone(&lease), asks);
    if asks {
        job.session.permit = Some(lease_check.clone());
    }
    let job = Arc::new(job);
    let computed = compute(Arc::clone(&job), start, asks.then_some(&*lease_check)).await;
    // The result is recorded: whoever waits for the lease finds it.
    drop(lease);
    if lease_check.is_over() {
        return Err(Ending::TakenOver);
    }
    match computed {
        Ok((mut record, rows)) => {
            let (key, outputs) = (Some(record.key), std::mem::take(&mut record.outputs));
            let (figures, reasons) = (std::mem::take(&mut record.figures), job.reasons.clone());
            let fresh = Fresh { record, reasons, cached_rows: rows.cached_rows, unasked: rows.unasked };
            Ok(KnownResult { key, outputs, figures, fresh: Some(Box::new(fresh)) })
        }
        Err(error) => {
            if error.blame == Blame::Changed {
                // The node will run again; give the writer time to finish.
                tokio::time::sleep(WRITERS_PAUSE).await;
            }
            Err(Ending::Failed(error))
        }
    }
}

async fn take_lease(job: &NodeJob) -> Result<Lease, OperatorError> {
    if let Some(lease) = job.run.store.try_lease(&job.key)? {
        return Ok(lease);
    }
    job.run.reporter.event(&Event::NodeWaiting { node: job.node().id().to_owned() });
    let stop = job.run.stop.clone();
    let lease = job.run.store.lease(&job.key, move || stop.is_draining()).await?;
    lease.ok_or_else(OperatorError::cancelled)
}

/// Looks once the lease is held, and returns how the attempt ends here, if it does: another process or machine computed
/// the result meanwhile, or an input is damaged. Fetches the inputs and compares them with their digests: those of
/// expensive nodes (external, or reading a model) every time, others once per run.
fn look_again(job: &NodeJob) -> Result<Option<Result<KnownResult, Ending>>, OperatorError> {
    let (node, store) = (job.node(), &job.run.store);
    if job.recall {
        if has_floor(node) {
            // Another process may have raised it since it was read.
            store.forget_floor(&job.parts.row_base(node));
        }
        let retry = job.run.options.asked.retry();
        if let Lookup::Hit(result, _) = look_up(store, node, &job.parts, &job.key, retry, true) {
            return Ok(Some(Ok(KnownResult::stored(*result))));
        }
    }
    store.sound()?;
    let learns = node.inputs.iter().any(|input| input.port_type == PortType::Tree(TreeKind::Model));
    let is_expensive = learns || node.operator.declaration.effect == Effect::External;
    let begun = Instant::now();
    for (position, input) in job.inputs.iter().enumerate() {
        let state = if is_expensive { store.intact(&input.id)? } else { store.intact_once(&input.id)? };
        if let Err(damage) = state {
            return Ok(Some(Err(Ending::DamagedInput(position, damage))));
        }
    }
    let bytes: u64 = job.inputs.iter().map(|input| input.bytes).sum();
    tracing::debug!("inputs of `{}` ({bytes} bytes) compared in {:.6} s", node.id(), begun.elapsed().as_secs_f64());
    Ok(None)
}

/// State prepared before a kernel runs and needed after it.
struct Prepared {
    checkpoint: Arc<Checkpoint>,
    pieces: Arc<KeptPieces>,
    row_base: Digest,
}

/// Runs the kernel of a node and records the result. The caller must hold the node's lease. `lease_check`: that of a node
/// that makes calls.
async fn compute(
    job: Arc<NodeJob>,
    start: Instant,
    lease_check: Option<&LeaseCheck>,
) -> Result<(NodeResult, RowsRun), OperatorError> {
    let own = Arc::clone(&job);
    let (prepared, parts) = blocking(move || prepare(&own)).await?;
    let ran = with_services(&job, parts).await;
    // A machine that slept while it waited for its last answers must not overwrite what another one has recorded.
    if let Some(lease_check) = lease_check
        && lease_check.has_ended().await
    {
        return Err(OperatorError::cancelled());
    }
    blocking(move || record(&job, &prepared, ran, start)).await
}

fn prepare(job: &NodeJob) -> Result<(Prepared, ContextParts), OperatorError> {
    let (node, store) = (job.node(), &job.run.store);
    let (id, operator) = (node.id().to_owned(), node.entry.name.to_owned());
    job.run.reporter.event(&Event::NodeStarted { node: id, operator, reasons: job.reasons.clone(), time: unix_time() });
    let mut progress = NodeProgress::new(node.id(), Arc::clone(&job.run.reporter));
    progress.spent = Arc::clone(&job.session.node);
    let progress = Arc::new(progress);
    let checkpoint = Arc::new(store.checkpoint(&job.key));
    if !job.recall {
        // The state of an earlier run must not count in a forced one.
        checkpoint.remove()?;
    }
    let row_base = job.parts.row_base(node);
    let asks_rows = node.operator.declaration.rows.is_some();
    let known: Vec<_> = job.calls.iter().chain(&job.observed.caches).map(Arc::as_ref).collect();
    if asks_rows && !job.recall && store.raise_floor(&row_base, &job.key, &known, job.run.started)? {
        progress.log("resumes the interrupted forced run");
    } else if asks_rows {
        // Fetches the floor from a shared store: a worker reads only the local one.
        store.floor(&row_base)?;
    }
    let pieces = Arc::new(store.pieces(&row_base, job.recall));
    let sources = Arc::clone(&job.parts.seen);
    let watched = Arc::new(WatchedPieces { pieces: Arc::clone(&pieces), sources: Arc::clone(&sources) });
    let parts = job.run.context_parts(node, &progress);
    let parts = ContextParts { checkpoint: checkpoint.clone(), pieces: watched, sources, ..parts };
    Ok((Prepared { checkpoint, pieces, row_base }, parts))
}

/// Runs the kernel while the node's services run.
async fn with_services(job: &Arc<NodeJob>, parts: ContextParts) -> Result<Ran, OperatorError> {
    // Before the services: they may take minutes to start.
    let executor = executor_of(job)?;
    let mut task = Task { job: Arc::clone(job), operator: None, alive: None, parts };
    if job.node().spec.services.is_empty() {
        return executor.submit(task).await;
    }
    let services = Services::start(job, &task.parts.progress).await?;
    let ran = match services.bind(job) {
        Ok(operator) => {
            (task.operator, task.alive) = (Some(operator), Some(services.alive()));
            services.watched(job, executor.submit(task)).await
        }
        Err(error) => Err(error),
    };
    // Before they are ended: a service that is ended here has not failed.
    let fault = services.fault();
    services.end().await;
    match fault {
        // What was done while they ran is kept; the next run goes on there.
        Some(error) if !job.run.stop.is_cancelled() => Err(error),
        _ => ran,
    }
}

fn record(
    job: &NodeJob,
    prepared: &Prepared,
    ran: Result<Ran, OperatorError>,
    start: Instant,
) -> Result<(NodeResult, RowsRun), OperatorError> {
    let (node, store) = (job.node(), &job.run.store);
    // Checked before anything is recorded, and before a failure counts: it may come from a half-written file.
    unchanged(&job.parts.seen, &node.operator, &job.run.options.directory)?;
    let mut ran = ran?;
    let blocks = std::mem::take(&mut ran.written.blocks);
    let mut result = node_result(job, &mut ran, start);
    result.memo = result.memo.or_else(|| prepared.pieces.base());
    if let Some(known) = better(job, prepared, &result)? {
        let line = "the budget was used up before more was known than before: the earlier result stays";
        job.run.reporter.event(&Event::NodeLog { node: node.id().to_owned(), line: line.to_owned() });
        // The usage is from this run in this case, too.
        let NodeResult { calls, service_calls, prompt_tokens, completion_tokens, cost_nanos, seconds, .. } = result;
        result = NodeResult { calls, service_calls, prompt_tokens, completion_tokens, cost_nanos, seconds, ..known };
    } else if !job.recall {
        store.record_anew(&result)?;
    } else if let Some(first) = store.record(&result)? {
        // The usage is from this run, but the outputs of the first recorded result count.
        result.outputs = first.outputs;
    }
    if node.operator.declaration.rows.is_some() && ran.rows.unasked == 0 {
        // After the record: a run that is killed before leaves the floor open, and the next one resumes the forced run.
        // A plain run, too, completes what a forced run left unfinished.
        store.close_floor(&prepared.row_base, ran.rows.since)?;
    }
    // After the record: if the run is killed before, the next one resumes there.
    prepared.checkpoint.remove()?;
    if !blocks.is_empty() {
        // They are links into the outputs, which a recorded result protects now.
        let base = ran.rows.memo.unwrap_or_else(|| job.parts.block_base(node));
        Blocks::open(store, &base, true)?.keep(&blocks)?;
    }
    Ok((result, ran.rows))
}

fn node_result(job: &NodeJob, ran: &mut Ran, start: Instant) -> NodeResult {
    let (written, rows, node) = (std::mem::take(&mut ran.written), &ran.rows, job.node());
    let declared = Computed::declared(node.operator.declaration.repeatability);
    NodeResult {
        key: job.key,
        preimage: job.preimage.clone(),
        origin: Some(Origin {
            node: node.id().to_owned(),
            pipeline: job.run.plan.name.clone(),
            params: node.operator.params.clone(),
            directory: job.run.options.directory.display().to_string(),
            sources: job.parts.files(),
            computed: Some(declared.and(ran.computed.clone())),
        }),
        outputs: written.outputs,
        figures: written.figures,
        summary: written.summary,
        dropped: rows.dropped,
        calls: rows.usage.calls,
        service_calls: rows.usage.service_calls,
        prompt_tokens: rows.usage.prompt_tokens,
        completion_tokens: rows.usage.completion_tokens,
        cost_nanos: rows.usage.cost_nanos,
        seconds: start.elapsed().as_secs_f64(),
        finished: unix_time(),
        run: job.run.id.clone(),
        searchmill: env!("CARGO_PKG_VERSION").to_owned(),
        columns: rows.columns.clone(),
        memo: rows.memo,
        asked: rows.asked,
        observed: rows.observed.clone(),
        unasked: rows.unasked,
        floor: (rows.since > 0).then_some(rows.since),
    }
}

/// Returns the known result if it stays: this one was cut short by a budget, and is no better. A result that stands on
/// an earlier floor stays, too, unless its own key was forced since. One whose files are gone does not.
fn better(job: &NodeJob, prepared: &Prepared, result: &NodeResult) -> Result<Option<NodeResult>, OperatorError> {
    if result.unasked == 0 {
        return Ok(None);
    }
    let store = &job.run.store;
    let wanted = store.floor(&prepared.row_base)?.wanted(&job.key);
    let known = store.result(&job.key).filter(|known| known.since() >= wanted && !result.is_better_than(known));
    Ok(known.filter(|known| known.outputs.values().all(|output| store.check_output(output).is_ok())))
}

/// Whether the checks of a node are evaluated. Rows of a test are few, and made up.
fn has_checks(run: &Run, index: NodeIndex) -> bool {
    !run.node(index).spec.checks.is_empty() && run.options.trial.is_none()
}

/// Whether a node whose result is known has nothing more to do.
pub(super) fn is_settled_at_once(run: &Run, index: NodeIndex) -> bool {
    !has_checks(run, index) && !hands_over(run.node(index)) && !is_open(&run.plan, index)
}

/// Joins the failed checks that have this reaction; `None`: there are none.
fn failed_checks(outcomes: &[CheckOutcome], reaction: OnFailure) -> Option<String> {
    let failed = outcomes.iter().filter(|one| !one.passed && one.check.on_failure == reaction);
    let words: Vec<String> = failed.map(ToString::to_string).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// How a node ends whose checks were interrupted, or could not be evaluated on this machine. Its result is stored.
fn unchecked(result: KnownResult, error: OperatorError) -> Ending {
    if error.blame == Blame::Cancelled {
        return Ending::Interrupted(result);
    }
    let message = format!("its checks cannot be evaluated: {}", error.message);
    Ending::CheckFailed(result, OperatorError { message, ..error })
}
