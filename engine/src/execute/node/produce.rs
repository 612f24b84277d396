//! Produces the result of a node: waits for the lease, looks whether somebody else made it meanwhile, compares the
//! inputs, computes it wherever the kernel runs, and records it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::executor::{Task, blocking, executor_of};
use super::job::{Ending, Fresh, KnownResult, NodeJob, Ran};
use super::lease_check::LeaseCheck;
use super::service::Services;
use crate::endpoint::{FailedCalls, Usage};
use crate::error::{Blame, OperatorError};
use crate::events::Event;
use crate::execute::decide::{Lookup, has_floor, look_up};
use crate::execute::kernels::kernel_run::{RowsRun, WatchedPieces, unchanged};
use crate::execute::settings::progress::NodeProgress;
use crate::execute::settings::unix_time;
use crate::fingerprint::Digest;
use crate::operator::{Computed, ContextParts, Effect, PortType, ProgressSink, TreeKind};
use crate::store::{Blocks, Checkpoint, KeptPieces, Lease, NodeResult, Origin};

/// Pause before a changing source is read again.
const WRITERS_PAUSE: Duration = Duration::from_millis(300);

/// What an attempt cost.
#[derive(Default)]
pub(crate) struct Cost {
    /// Calls, tokens and money, also if it failed.
    pub(crate) spent: Usage,
    /// Attempts at calls that failed.
    pub(crate) failed_calls: FailedCalls,
    /// Rows that were not asked because a budget was used up.
    pub(crate) unasked: u64,
    pub(crate) seconds: f64,
}

/// Produces the result of a node whose inputs are known.
pub(super) async fn produce(job: NodeJob) -> (Result<KnownResult, Ending>, Cost) {
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

async fn take_lease(job: &NodeJob) -> Result<Lease, OperatorError> {
    if let Some(lease) = job.run.store.try_lease(&job.key)? {
        return Ok(lease);
    }
    job.run.reporter.event(&Event::NodeWaiting { node: job.node().id().to_owned() });
    let stop = job.run.stop.clone();
    let lease = job.run.store.lease(&job.key, move || stop.is_draining()).await?;
    lease.ok_or_else(OperatorError::cancelled)
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
