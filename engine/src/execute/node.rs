//! One node from lease to record: wait for others, run, commit, write the result.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::driver::{RunOptions, Stop, unix_time};
use super::identity::Parts;
use super::kernel::{KernelRun, run_kernel};
use super::progress::NodeProgress;
use super::resolve::{Lookup, lookup};
use super::rows::RowsRun;
use crate::fingerprint::{NodeKey, Reason, RowKeys};
use crate::operator::{Context, ContextParts, Inputs, OperatorError};
use crate::plan::{Node, Plan};
use crate::report::{Event, Reporter};
use crate::store::{Blocks, NodeResult, Origin, OutputRecord, Store, StoreSink, Written};

/// Rows in flight of external nodes, unless the node says otherwise.
const CONCURRENCY: usize = 16;

/// Everything that running one node needs.
pub(super) struct NodeJob {
    pub(super) plan: Arc<Plan>,
    pub(super) place: usize,
    pub(super) parts: Parts,
    pub(super) inputs: Vec<OutputRecord>,
    pub(super) reasons: Vec<Reason>,
    pub(super) recall: bool,
    pub(super) store: Store,
    pub(super) options: RunOptions,
    pub(super) reporter: Arc<dyn Reporter>,
    pub(super) stop: Stop,
    pub(super) run: String,
    pub(super) http: reqwest::Client,
}

/// What came of it.
pub(super) struct NodeDone {
    pub(super) place: usize,
    pub(super) key: NodeKey,
    pub(super) reasons: Vec<Reason>,
    pub(super) outcome: Result<NodeResult, OperatorError>,
    /// Another process had made the result meanwhile.
    pub(super) reused: bool,
    pub(super) cached_rows: u64,
    pub(super) seconds: f64,
}

pub(super) async fn run_node(job: NodeJob) -> NodeDone {
    let start = Instant::now();
    let node = &job.plan.nodes()[job.place];
    let (key, preimage) = job.parts.key(node);
    let (place, reasons) = (job.place, job.reasons.clone());
    let done = |outcome, reused, cached_rows| {
        let seconds = start.elapsed().as_secs_f64();
        NodeDone { place, key, reasons, outcome, reused, cached_rows, seconds }
    };
    let lease = match take_lease(&job, &key).await {
        Ok(lease) => lease,
        Err(error) => return done(Err(error), false, 0),
    };
    if job.recall
        && let Lookup::Hit(result) = lookup(&job.store, node, &key, true)
    {
        return done(Ok(*result), true, 0);
    }
    let computed = tokio::task::spawn_blocking(move || compute(&job, key, preimage, start)).await;
    drop(lease);
    match computed {
        Ok(Ok((result, rows))) => done(Ok(result), false, rows.cached_rows),
        Ok(Err(error)) => done(Err(error), false, 0),
        Err(panic) => done(Err(OperatorError::engine(panic_text(panic))), false, 0),
    }
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
    let limit = job.options.limit.filter(|_| node.inputs.is_empty());
    let mut sink = StoreSink::new(&job.store, node.outputs.clone()).with_limit(limit);
    let run = kernel_run(job, node, &sink)?;
    let rows = match run_kernel(node.operator.as_ref(), &run, &mut sink) {
        // A source that is cut short by `--limit` says so by failing its write.
        Err(_) if sink.limit_reached() => RowsRun::default(),
        other => other?,
    };
    if rows.stopped {
        return Err(OperatorError::cancelled());
    }
    let mut written = sink.commit()?;
    let blocks = std::mem::take(&mut written.blocks);
    let result = node_result(job, key, preimage, written, &rows, start);
    job.store.record(&result)?;
    if !blocks.is_empty() {
        Blocks::open(&job.store, &run.block_base, true)?.keep(&blocks)?;
    }
    Ok((result, rows))
}

fn node_result(
    job: &NodeJob,
    key: NodeKey,
    preimage: serde_json::Value,
    written: Written,
    rows: &RowsRun,
    start: Instant,
) -> NodeResult {
    NodeResult {
        key,
        preimage,
        origin: Some(origin(job)),
        outputs: written.outputs,
        figures: written.figures,
        summary: written.summary,
        dropped: rows.dropped,
        calls: rows.usage.calls,
        prompt_tokens: rows.usage.prompt_tokens,
        completion_tokens: rows.usage.completion_tokens,
        seconds: start.elapsed().as_secs_f64(),
        finished: unix_time(),
        run: job.run.clone(),
        searchmill: env!("CARGO_PKG_VERSION").to_owned(),
        columns: rows.columns.clone(),
        memo: rows.memo,
    }
}

fn origin(job: &NodeJob) -> Origin {
    let node = &job.plan.nodes()[job.place];
    Origin {
        node: node.id().to_owned(),
        pipeline: job.plan.name().to_owned(),
        params: node.operator.params(),
        directory: job.options.directory.display().to_string(),
        sources: job.parts.files().to_vec(),
    }
}

fn kernel_run(job: &NodeJob, node: &Node, sink: &StoreSink) -> Result<KernelRun, OperatorError> {
    let mut inputs = Inputs::new();
    for (input, record) in node.inputs.iter().zip(&job.inputs) {
        inputs.bind(&input.port, job.store.open_input(&record.id)?);
    }
    let progress = Arc::new(NodeProgress::new(node.id(), Arc::clone(&job.reporter)));
    let parts = context_parts(node, &job.options, &progress, &job.stop, &job.http);
    let context = Context::new(ContextParts { scratch: sink.scratch(), ..parts });
    let main_port = node.main_port.clone();
    let (parts, plan, place) = (job.parts.clone(), Arc::clone(&job.plan), job.place);
    let side = parts.side_inputs(main_port.as_deref());
    let row_keys = Box::new(move |columns| RowKeys::new(&parts.row_identity(&plan.nodes()[place], &side), columns));
    let block_base = job.parts.block_base(node);
    progress.cached_rows.store(0, Ordering::Relaxed);
    Ok(KernelRun {
        inputs,
        main_port,
        context,
        row_keys,
        block_base,
        recall: job.recall,
        on_error: node.spec.on_error,
        stop: job.stop.clone(),
        progress,
        store: job.store.clone(),
    })
}

fn context_parts(
    node: &Node,
    options: &RunOptions,
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
        threads: resources.threads.unwrap_or(options.machine.threads),
        concurrency: resources.concurrency.unwrap_or(CONCURRENCY),
        retry: node.spec.retry,
        secrets: Arc::clone(&options.secrets),
        runtime: tokio::runtime::Handle::current(),
        progress: Arc::clone(progress) as Arc<dyn crate::operator::ProgressSink>,
        http: http.clone(),
    }
}

/// A context for work outside the node's own run (fetching sources, delivering outputs): no scratch folder of its own.
pub(super) fn bare_context(
    node: &Node,
    options: &RunOptions,
    reporter: &Arc<dyn Reporter>,
    stop: &Stop,
    store: &Store,
    http: &reqwest::Client,
) -> Context {
    let progress = Arc::new(NodeProgress::new(node.id(), Arc::clone(reporter)));
    let parts = context_parts(node, options, &progress, stop, http);
    Context::new(ContextParts { scratch: store.root().join("tmp"), ..parts })
}
