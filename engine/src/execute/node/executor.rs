//! Where the kernel of a node runs: in this process, or in a worker process on this machine.
//!
//! This decides nothing else: keys, leases, retries of nodes and the result record are the caller's. What a kernel made is
//! read from the parts that were committed to the store.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::spawn_blocking;

use super::job::{NodeJob, Ran};
use super::worker::run_in_worker;
use crate::endpoint::{Alive, EndpointSession};
use crate::error::OperatorError;
use crate::execute::kernels::kernel_run::KernelRun;
use crate::execute::kernels::run_kernel;
use crate::fingerprint::Reason;
use crate::operator::{BoundOperator, Context, ContextParts, Inputs};
use crate::store::StoreSink;

/// Runs kernels.
pub(super) trait Executor: Send + Sync {
    /// Starts a task. Its outcome is awaited at once.
    fn submit(&self, task: Task) -> BoxFuture<'static, Result<Ran, OperatorError>>;
}

/// One run of a node's kernel.
pub(super) struct Task {
    pub(super) job: Arc<NodeJob>,
    /// The node's operator with the addresses of its services; `None`: without services.
    pub(super) operator: Option<BoundOperator>,
    /// Whether the services run.
    pub(super) alive: Option<Alive>,
    pub(super) parts: ContextParts,
}

/// Returns the executor of a node. Budgets and rate limits belong to this process, so nodes that call an endpoint run
/// here.
pub(super) fn executor_of(job: &NodeJob) -> Result<Box<dyn Executor>, OperatorError> {
    let node = job.node();
    if node.operator.declaration.pays() {
        return Ok(Box::new(Here));
    }
    let workers = &job.run.options.asked.workers;
    match workers.program(&node.spec.resources, node.operator.declaration.runs_programs)? {
        Some(program) => Ok(Box::new(Worker { program: program.to_owned() })),
        None => Ok(Box::new(Here)),
    }
}

/// This process, on a thread that may block.
struct Here;

impl Executor for Here {
    fn submit(&self, task: Task) -> BoxFuture<'static, Result<Ran, OperatorError>> {
        blocking(move || run_here(task)).boxed()
    }
}

/// A worker process on this machine.
struct Worker {
    program: PathBuf,
}

impl Executor for Worker {
    fn submit(&self, task: Task) -> BoxFuture<'static, Result<Ran, OperatorError>> {
        let program = self.program.clone();
        blocking(move || {
            let operator = task.operator.as_ref().unwrap_or(&task.job.node().operator);
            run_in_worker(&task.job, &operator.params, &task.parts, &program)
        })
        .boxed()
    }
}

fn run_here(task: Task) -> Result<Ran, OperatorError> {
    let Task { job, operator, alive, parts } = task;
    let (node, store) = (job.node(), &job.run.store);
    let mut sink = StoreSink::new(store, node.outputs.clone())
        .with_limit(job.limit())
        .with_programs(node.operator.declaration.runs_programs)
        .with_redactor(job.session.redactor.clone());
    let session = EndpointSession { services: alive, ..job.session.clone() };
    let context = Context::new(ContextParts { scratch: sink.scratch(), ..parts }).with_session(session);
    let context = context.with_drain(Arc::clone(&job.run.stop.draining));
    let mut inputs = Inputs::new();
    for (input, record) in job.kernel_inputs() {
        inputs.bind(&input.port, store.open_input(&record.id)?);
    }
    let (row_base, block_base) = job.bases();
    let run = KernelRun {
        inputs,
        main_port: node.main_port.clone(),
        row_base,
        block_base,
        recall_blocks: job.recall_blocks(),
        on_error: node.spec.on_error,
        // A forced run replaces a result, also one that completes it later: not by less.
        finishes: job.run.plan.finishes && job.recall && !job.reasons.contains(&Reason::ForceUnfinished),
        calls: job.calls.clone(),
        observed: job.observed.clone(),
        ..KernelRun::new(context, store, Arc::clone(&job.parts.seen))
    };
    let operator = operator.as_ref().unwrap_or(&node.operator);
    let rows = match run_kernel(operator, &node.operator.declaration, &run, &mut sink) {
        Ok(rows) if !rows.stopped => rows,
        stopped => {
            let error = stopped.err().unwrap_or_else(OperatorError::cancelled);
            // Not by the user, if spending could not be recorded.
            return Err(job.session.budget.cause_of(error));
        }
    };
    Ok(Ran { written: sink.commit()?, rows, computed: run.context.computed() })
}

/// Runs blocking work on another thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OperatorError> + Send + 'static,
) -> Result<T, OperatorError> {
    match spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => {
            let panic = error.try_into_panic().ok();
            // `panic!` with arguments gives a `String`, without them a `&str`.
            let text = panic.as_ref().and_then(|panic| panic.downcast_ref::<String>().map(String::as_str));
            let text = text.or_else(|| panic.as_ref()?.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(OperatorError::engine(format!("the operator panicked: {text}")))
        }
    }
}
