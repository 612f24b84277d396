//! Runs a kernel in this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::task::{Executor, Handle, Task};
use crate::execute::job::{NodeJob, Ran};
use crate::execute::kernel::{KernelRun, run_kernel};
use crate::execute::progress::NodeProgress;
use crate::execute::rows::RowsRun;
use crate::operator::{Context, ContextParts, Inputs, OperatorError};
use crate::store::StoreSink;

/// Runs kernels in this process.
pub(super) struct Here;

impl Executor for Here {
    fn submit(&self, task: Task) -> Handle {
        Handle::blocking(move || run_here(&task.job, task.parts, task.progress))
    }
}

fn run_here(job: &NodeJob, parts: ContextParts, progress: Arc<NodeProgress>) -> Result<Ran, OperatorError> {
    let node = job.node();
    let mut sink = StoreSink::new(&job.run.store, node.outputs.clone())
        .with_limit(job.limit())
        .with_redactor(job.session.redactor.clone());
    let run = kernel_run(job, parts, progress, &sink)?;
    let rows = match run_kernel(&node.operator, &run, &mut sink) {
        // At `--limit`, the sink ends the source by failing its write.
        Err(_) if sink.limit_reached() => RowsRun::default(),
        other => other?,
    };
    if rows.stopped {
        return Err(OperatorError::cancelled());
    }
    Ok(Ran { written: sink.commit()?, rows, computed: run.context.computed() })
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
        inputs.bind(&input.port, job.run.store.open_input(&record.id)?);
    }
    let context = Context::new(ContextParts { scratch: sink.scratch(), ..parts }).with_session(job.session.clone());
    let context = context.with_drain(job.run.stop.drain_flag());
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
        stop: job.run.stop.clone(),
        progress,
        store: job.run.store.clone(),
        calls: job.calls.clone(),
        sources: Arc::clone(job.parts.seen()),
    })
}
