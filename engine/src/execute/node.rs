//! One node from lease to record: wait for others, run, commit, write the result.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::clock::unix_time;
use super::decide::{Lookup, has_floor, look_up};
use super::job::{NodeJob, Ran};
use super::kernel::{KernelRun, run_kernel};
use super::options::Settings;
use super::progress::NodeProgress;
use super::rows::RowsRun;
use super::stop::Stop;
use super::tenure::Tenure;
use super::watch::{WatchedPieces, unchanged};
use super::worker::run_in_worker;
use crate::fingerprint::{NodeKey, Reason};
use crate::operator::{
    Blame, Computed, Context, ContextParts, Effect, Inputs, NoCheckpoint, NoPieces, NoSources, OperatorError, PortType,
    ProgressSink, TreeKind, Usage,
};
use crate::plan::Node;
use crate::report::{Event, Reporter};
use crate::store::{Blocks, Damage, NodeResult, Origin, Store, StoreSink};

/// Rows in flight of external nodes, unless the node says otherwise.
const CONCURRENCY: usize = 16;

/// Between two readings of a source that is being written.
const WRITERS_PAUSE: Duration = Duration::from_millis(300);

/// What came of a node.
pub(super) struct NodeDone {
    pub(super) place: usize,
    pub(super) key: NodeKey,
    pub(super) reasons: Vec<Reason>,
    pub(super) outcome: Result<NodeResult, OperatorError>,
    /// Another process had made the result meanwhile.
    pub(super) reused: bool,
    pub(super) cached_rows: u64,
    /// What it cost, also where nothing came of it.
    pub(super) spent: Usage,
    pub(super) seconds: f64,
    /// An input was found damaged before anything was computed: its place among the inputs, and how.
    pub(super) damaged: Option<(usize, Damage)>,
    /// Another machine went on with the node while this one was suspended.
    pub(super) taken_over: bool,
}

pub(super) async fn run_node(mut job: NodeJob) -> NodeDone {
    let start = Instant::now();
    let plan = Arc::clone(&job.plan);
    let node = &plan.nodes()[job.place];
    let (key, preimage) = job.parts.key(node);
    let (place, reasons) = (job.place, job.reasons.clone());
    let paid = Arc::clone(&job.session.node);
    let done = |outcome: Result<NodeResult, OperatorError>, reused, cached_rows| {
        let seconds = start.elapsed().as_secs_f64();
        let spent = match &outcome {
            Ok(_) if reused => Usage::default(),
            Ok(result) => result.usage(),
            Err(_) => paid.spent(),
        };
        NodeDone { place, key, reasons, outcome, reused, cached_rows, spent, seconds, damaged: None, taken_over: false }
    };
    let lease = match take_lease(&job, &key).await {
        Ok(lease) => Arc::new(lease),
        Err(error) => return done(Err(error), false, 0),
    };
    if let Some(result) = made_meanwhile(&job, &key) {
        return done(Ok(result), true, 0);
    }
    if let Err(error) = job.store.sound() {
        return done(Err(error.into()), false, 0);
    }
    match tokio::task::block_in_place(|| damaged_input(&job)) {
        Ok(None) => {}
        Ok(damaged) => return NodeDone { damaged, ..done(Err(OperatorError::cancelled()), false, 0) },
        Err(error) => return done(Err(error), false, 0),
    }
    let asks = job.session.limiter.is_some();
    let tenure = Tenure::new(&job.store, key, Arc::clone(&lease), asks);
    if asks {
        job.session.tenure = Some(tenure.clone());
    }
    let computed = tokio::task::spawn_blocking(move || compute(&job, key, preimage, start)).await;
    drop(lease);
    if tenure.is_over() {
        return NodeDone { taken_over: true, ..done(Err(OperatorError::cancelled()), false, 0) };
    }
    if matches!(&computed, Ok(Err(error)) if error.blame == Blame::Changed) {
        // It will run again: a writer gets the time to finish.
        tokio::time::sleep(WRITERS_PAUSE).await;
    }
    match computed {
        Ok(Ok((result, rows))) => done(Ok(result), false, rows.cached_rows),
        Ok(Err(error)) => done(Err(error), false, 0),
        Err(panic) => done(Err(OperatorError::engine(panic_text(panic))), false, 0),
    }
}

/// The result, if another process or machine has made it before this one had the lease.
fn made_meanwhile(job: &NodeJob, key: &NodeKey) -> Option<NodeResult> {
    if !job.recall {
        return None;
    }
    let node = job.node();
    if has_floor(node) {
        job.store.forget_floor(&job.parts.row_base(node));
    }
    match look_up(&job.store, node, &job.parts, key, job.options.retry()) {
        Lookup::Hit(result) => Some(*result),
        Lookup::Miss(_) => None,
    }
}

/// Brings the inputs here and compares them with their digests; gives the first one that is not what it should be. Where
/// work on them is paid for or slow, they are read just before; elsewhere once a run.
fn damaged_input(job: &NodeJob) -> Result<Option<(usize, Damage)>, OperatorError> {
    let node = job.node();
    let learns = node.inputs.iter().any(|input| input.port_type == PortType::Tree(TreeKind::Model));
    let dear = learns || node.entry.effect == Effect::External;
    let begun = Instant::now();
    for (place, input) in job.inputs.iter().enumerate() {
        let state = if dear { job.store.intact(&input.id)? } else { job.store.intact_once(&input.id)? };
        if let Err(damage) = state {
            return Ok(Some((place, damage)));
        }
    }
    let bytes: u64 = job.inputs.iter().map(|input| input.bytes).sum();
    tracing::debug!("inputs of `{}` ({bytes} bytes) compared in {:.6} s", node.id(), begun.elapsed().as_secs_f64());
    Ok(None)
}

async fn take_lease(job: &NodeJob, key: &NodeKey) -> Result<crate::store::Lease, OperatorError> {
    if let Some(lease) = job.store.try_lease(key)? {
        return Ok(lease);
    }
    let node = job.plan.nodes()[job.place].id().to_owned();
    job.reporter.event(&Event::NodeWaiting { node });
    let stop = job.stop.clone();
    let lease = job.store.lease(key, move || stop.is_draining()).await?;
    lease.ok_or_else(OperatorError::cancelled)
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let text = error.try_into_panic().ok().and_then(|panic| {
        panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
    });
    format!("the operator panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
}

fn compute(
    job: &NodeJob,
    key: NodeKey,
    preimage: serde_json::Value,
    start: Instant,
) -> Result<(NodeResult, RowsRun), OperatorError> {
    let node = &job.plan.nodes()[job.place];
    let (id, operator) = (node.id().to_owned(), node.entry.name.to_owned());
    job.reporter.event(&Event::NodeStarted { node: id, operator, reasons: job.reasons.clone(), time: unix_time() });
    let mut progress = NodeProgress::new(node.id(), Arc::clone(&job.reporter));
    progress.spent = Arc::clone(&job.session.node);
    let progress = Arc::new(progress);
    let checkpoint = Arc::new(job.store.checkpoint(&key));
    if !job.recall {
        checkpoint.remove()?;
    }
    let asks_rows = node.operator.rows().is_some();
    let row_base = job.parts.row_base(node);
    if asks_rows && !job.recall && job.store.raise_floor(&row_base, &key, job.calls.as_deref(), job.started)? {
        progress.log("goes on from the forced run that was cut off");
    } else if asks_rows {
        // Brought here from a shared store: a worker looks no further.
        job.store.floor(&row_base)?;
    }
    let parts = context_parts(node, &job.options, &progress, &job.stop, &job.http);
    let pieces = Arc::new(job.store.pieces(&row_base, job.recall));
    let seen = Arc::clone(job.parts.seen());
    let watched = Arc::new(WatchedPieces { pieces: Arc::clone(&pieces), sources: Arc::clone(&seen) });
    let parts = ContextParts { checkpoint: checkpoint.clone(), pieces: watched, sources: seen, ..parts };
    // Budget and limits of endpoints are this process's: who asks one stays here.
    let asks = job.session.limiter.is_some();
    let runs_programs = node.operator.runs_programs();
    let program = if asks { None } else { job.options.workers.program(&node.spec.resources, runs_programs)? };
    let ran = match program {
        Some(program) => run_in_worker(job, key, &parts, program),
        None => run_here(job, parts, progress),
    };
    // Before anything is recorded, and before a failure counts that may come from half a file.
    unchanged(job.parts.seen(), node.operator.as_ref(), &job.options.directory)?;
    let mut ran = ran?;
    let blocks = std::mem::take(&mut ran.written.blocks);
    let mut result = node_result(job, key, preimage, &mut ran, start);
    result.memo = result.memo.or_else(|| pieces.base());
    if !job.recall {
        job.store.record_anew(&result)?;
    } else if let Some(first) = job.store.record(&result)? {
        // What was paid is ours, what counts is what was there first.
        result.outputs = first.outputs;
    }
    if asks_rows {
        // Also a plain run has then finished what a forced one began.
        job.store.close_floor(&row_base, ran.rows.since)?;
    }
    checkpoint.remove()?;
    if !blocks.is_empty() {
        Blocks::open(&job.store, &job.parts.block_base(node), true)?.keep(&blocks)?;
    }
    Ok((result, ran.rows))
}

/// Runs the node in this process.
fn run_here(job: &NodeJob, parts: ContextParts, progress: Arc<NodeProgress>) -> Result<Ran, OperatorError> {
    let node = job.node();
    let mut sink = StoreSink::new(&job.store, node.outputs.clone())
        .with_limit(job.limit())
        .with_redactor(job.session.redactor.clone());
    let run = kernel_run(job, parts, progress, &sink)?;
    let rows = match run_kernel(node.operator.as_ref(), &run, &mut sink) {
        // A source that is cut short by `--limit` says so by failing its write.
        Err(_) if sink.limit_reached() => RowsRun::default(),
        other => other?,
    };
    if rows.stopped {
        return Err(OperatorError::cancelled());
    }
    Ok(Ran { written: sink.commit()?, rows, computed: run.context.computed() })
}

fn node_result(job: &NodeJob, key: NodeKey, preimage: serde_json::Value, ran: &mut Ran, start: Instant) -> NodeResult {
    let (written, rows) = (std::mem::take(&mut ran.written), &ran.rows);
    let declared = Computed::declared(job.node().operator.repeatability());
    let computed = Some(declared.and(ran.computed.clone()));
    NodeResult {
        key,
        preimage,
        origin: Some(Origin { computed, ..origin(job) }),
        outputs: written.outputs,
        figures: written.figures,
        summary: written.summary,
        dropped: rows.dropped,
        calls: rows.usage.calls,
        prompt_tokens: rows.usage.prompt_tokens,
        completion_tokens: rows.usage.completion_tokens,
        cost_nanos: rows.usage.cost_nanos,
        seconds: start.elapsed().as_secs_f64(),
        finished: unix_time(),
        run: job.run.clone(),
        searchmill: env!("CARGO_PKG_VERSION").to_owned(),
        columns: rows.columns.clone(),
        memo: rows.memo,
        asked: rows.asked,
        floor: (rows.since > 0).then_some(rows.since),
    }
}

fn origin(job: &NodeJob) -> Origin {
    let node = &job.plan.nodes()[job.place];
    Origin {
        node: node.id().to_owned(),
        pipeline: job.plan.name().to_owned(),
        params: node.operator.params(),
        directory: job.options.directory.display().to_string(),
        sources: job.parts.files(),
        computed: None,
    }
}

fn kernel_run(
    job: &NodeJob,
    parts: ContextParts,
    progress: Arc<NodeProgress>,
    sink: &StoreSink,
) -> Result<KernelRun, OperatorError> {
    let node = job.node();
    let mut inputs = Inputs::new();
    for (input, record) in node.inputs.iter().zip(&job.inputs) {
        inputs.bind(&input.port, job.store.open_input(&record.id)?);
    }
    let context = Context::new(ContextParts { scratch: sink.scratch(), ..parts }).with_session(job.session.clone());
    let context = context.with_drain(job.stop.drain_flag());
    let (row_base, block_base) = job.bases();
    progress.cached_rows.store(0, Ordering::Relaxed);
    Ok(KernelRun {
        inputs,
        main_port: node.main_port.clone(),
        context,
        row_base,
        block_base,
        recall_blocks: job.recall_blocks(),
        on_error: node.spec.on_error,
        stop: job.stop.clone(),
        progress,
        store: job.store.clone(),
        calls: job.calls.clone(),
        sources: Arc::clone(job.parts.seen()),
    })
}

fn context_parts(
    node: &Node,
    options: &Settings,
    progress: &Arc<NodeProgress>,
    stop: &Stop,
    http: &reqwest::Client,
) -> ContextParts {
    let resources = node.spec.resources;
    ContextParts {
        seed: node.spec.seed,
        cancelled: stop.flag(),
        scratch: std::env::temp_dir(),
        directory: options.directory.clone(),
        memory: resources.memory,
        gpus: 0,
        threads: resources.threads.unwrap_or(options.machine.threads),
        concurrency: resources.concurrency.unwrap_or(CONCURRENCY),
        retry: node.spec.retry,
        secrets: Arc::clone(&options.secrets),
        runtime: tokio::runtime::Handle::current(),
        progress: Arc::clone(progress) as Arc<dyn crate::operator::ProgressSink>,
        http: http.clone(),
        checkpoint: Arc::new(NoCheckpoint),
        pieces: Arc::new(NoPieces),
        sources: Arc::new(NoSources),
    }
}

/// A context for work outside the node's own run (fetching sources, delivering outputs): no scratch folder of its own.
pub(super) fn bare_context(
    node: &Node,
    options: &Settings,
    reporter: &Arc<dyn Reporter>,
    stop: &Stop,
    store: &Store,
    http: &reqwest::Client,
) -> Context {
    let progress = Arc::new(NodeProgress::new(node.id(), Arc::clone(reporter)));
    let parts = context_parts(node, options, &progress, stop, http);
    Context::new(ContextParts { scratch: store.root().join("tmp"), ..parts })
}
