//! Where the kernel of a node runs: in this process, or in a worker process on this machine.
//!
//! This decides nothing else: keys, leases, retries of nodes and the result record are the caller's. What a kernel made is
//! read from the parts that were committed to the store.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::{JoinError, JoinHandle, spawn_blocking};

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
    /// Starts a task.
    fn submit(&self, task: Task) -> Handle;
}

/// One run of a node's kernel.
pub(crate) struct Task {
    pub(crate) job: Arc<NodeJob>,
    /// The node's operator with the addresses of its services; `None`: without services.
    pub(crate) operator: Option<BoundOperator>,
    /// Whether the services run.
    pub(crate) alive: Option<Alive>,
    pub(crate) parts: ContextParts,
}

/// A running task.
pub(crate) struct Handle(JoinHandle<Result<Ran, OperatorError>>);

impl Handle {
    /// Starts a task on a thread that may block.
    fn blocking(work: impl FnOnce() -> Result<Ran, OperatorError> + Send + 'static) -> Self {
        Self(spawn_blocking(work))
    }

    /// Waits for the task to end.
    pub(super) async fn outcome(self) -> Result<Ran, OperatorError> {
        ended(self.0).await
    }
}

/// Returns the executor of a node. Budgets and rate limits belong to this process, so nodes that call an endpoint run
/// here.
pub(super) fn executor(job: &NodeJob) -> Result<Box<dyn Executor>, OperatorError> {
    let (node, workers) = (job.node(), &job.run.options.asked.workers);
    if node.operator.declaration.pays() {
        return Ok(Box::new(Here));
    }
    let program = workers.program(&node.spec.resources, node.operator.declaration.runs_programs)?;
    Ok(match program {
        Some(program) => Box::new(Process { program: program.to_owned() }),
        None => Box::new(Here),
    })
}

/// This process.
struct Here;

impl Executor for Here {
    fn submit(&self, task: Task) -> Handle {
        Handle::blocking(move || run_here(task))
    }
}

/// A worker process on this machine.
struct Process {
    program: PathBuf,
}

impl Executor for Process {
    fn submit(&self, task: Task) -> Handle {
        let program = self.program.clone();
        Handle::blocking(move || {
            let operator = task.operator.as_ref().unwrap_or(&task.job.node().operator);
            run_in_worker(&task.job, &operator.params, &task.parts, &program)
        })
    }
}

fn run_here(task: Task) -> Result<Ran, OperatorError> {
    let Task { job, operator, alive, parts } = task;
    let node = job.node();
    let mut sink = StoreSink::new(&job.run.store, node.outputs.clone())
        .with_limit(job.limit())
        .with_programs(node.operator.declaration.runs_programs)
        .with_redactor(job.session.redactor.clone());
    let session = EndpointSession { services: alive, ..job.session.clone() };
    let context = Context::new(ContextParts { scratch: sink.scratch(), ..parts }).with_session(session);
    let context = context.with_drain(job.run.stop.drain_flag());
    let mut inputs = Inputs::new();
    for (input, record) in job.kernel_inputs() {
        inputs.bind(&input.port, job.run.store.open_input(&record.id)?);
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
        ..KernelRun::new(context, &job.run.store, Arc::clone(job.parts.seen()))
    };
    let operator = operator.as_ref().unwrap_or(&node.operator);
    let rows = run_kernel(operator, &node.operator.declaration, &run, &mut sink);
    let rows = rows.and_then(|rows| if rows.stopped { Err(OperatorError::cancelled()) } else { Ok(rows) });
    let rows = rows.map_err(|error| job.session.budget.cause_of(error))?;
    Ok(Ran { written: sink.commit()?, rows, computed: run.context.computed() })
}

/// Runs blocking work on another thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OperatorError> + Send + 'static,
) -> Result<T, OperatorError> {
    ended(spawn_blocking(work)).await
}

async fn ended<T>(task: JoinHandle<Result<T, OperatorError>>) -> Result<T, OperatorError> {
    task.await.unwrap_or_else(|panic| Err(OperatorError::engine(panic_text(panic))))
}

fn panic_text(error: JoinError) -> String {
    let text = error.try_into_panic().ok().and_then(|panic| {
        panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
    });
    format!("the operator panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
}
