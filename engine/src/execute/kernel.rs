//! Runs one node's kernel into a sink, on the right kind of thread.

use std::sync::Arc;

use super::map::{MapJob, run_map};
use super::progress::NodeProgress;
use super::query::run_query;
use super::rows::{RowsJob, RowsRun, run_rows};
use super::stop::Stop;
use super::watch::WatchedRows;
use crate::fingerprint::{Digest, RowKeys, SeenSources};
use crate::operator::{AsyncMapKernel, BoundOperator, Context, Inputs, Kernel, OperatorError, Outputs};
use crate::spec::OnError;
use crate::store::{Blocks, CallCache, Memo, Store, StoreSink};

/// The context of a kernel run and its inputs.
pub(super) struct KernelRun {
    pub(super) inputs: Inputs,
    pub(super) main_port: Option<String>,
    pub(super) context: Context,
    /// Identity without the row input, shared by all rows of that input.
    pub(super) row_base: Digest,
    /// Identity without the row input, shared by all parts of that input.
    pub(super) block_base: Digest,
    /// Whether to skip known parts of the row input.
    pub(super) recall_blocks: bool,
    pub(super) on_error: OnError,
    pub(super) stop: Stop,
    pub(super) progress: Arc<NodeProgress>,
    pub(super) store: Store,
    /// The remembered calls to the node's model.
    pub(super) calls: Option<Arc<CallCache>>,
    /// The sources as the key saw them.
    pub(super) sources: Arc<SeenSources>,
}

/// Opens and runs the kernel. Blocking.
pub(super) fn run_kernel(
    operator: &BoundOperator,
    run: &KernelRun,
    sink: &mut StoreSink,
) -> Result<RowsRun, OperatorError> {
    let kernel = operator.open(&run.inputs, &run.context)?;
    // Opening may load a model: check that its files are those named by the key.
    if let Some(what) = run.sources.differs(&operator.declaration.sources(&run.context.resolve(""))) {
        return Err(OperatorError::changed(&what));
    }
    let main = run.main_port.as_deref().unwrap_or_default();
    match kernel {
        Kernel::Blocking(kernel) => kernel.run(&run.inputs, &mut Outputs::new(sink), &run.context)?,
        Kernel::Map(kernel) => {
            let rows = run.inputs.rows(main)?;
            let blocks = Blocks::open(&run.store, &run.block_base, run.recall_blocks)?;
            let job = MapJob { kernel, rows, blocks: &blocks, context: &run.context };
            let mut done = RowsRun::known(run_map(&job, sink)?);
            done.memo = Some(run.block_base);
            return Ok(done);
        }
        Kernel::Query(kernel) => {
            let outputs = &mut Outputs::new(sink);
            let columns = run.context.block_on(run_query(kernel.as_ref(), &run.inputs, outputs, &run.context))?;
            return Ok(RowsRun::of_query(columns));
        }
        Kernel::AsyncMap(kernel) => {
            let base = run.row_base;
            let kernel: Arc<dyn AsyncMapKernel> = Arc::new(WatchedRows { kernel, sources: Arc::clone(&run.sources) });
            let keys = RowKeys::new(base, kernel.reads());
            let since = run.store.floor(&base)?.since;
            let memo = remembered(run, &base)?.since(since);
            let job = RowsJob {
                kernel,
                rows: run.inputs.rows(main)?,
                keys,
                memo,
                since,
                calls: run.calls.clone(),
                on_error: run.on_error,
                context: run.context.clone(),
                stop: run.stop.clone(),
                progress: Arc::clone(&run.progress),
            };
            let mut done = run.context.block_on(run_rows(job, &mut Outputs::new(sink)))?;
            done.memo = Some(base);
            done.since = since;
            done.asked = run.calls.as_ref().map(|calls| calls.base());
            return Ok(done);
        }
    }
    Ok(RowsRun::default())
}

/// Opens the memo of known rows and repairs it if it is damaged.
fn remembered(run: &KernelRun, base: &Digest) -> Result<Memo, OperatorError> {
    run.store.tidy_memo(base);
    let memo = Memo::open(&run.store, base)?;
    if memo.damage().lost == 0 {
        return Ok(memo);
    }
    let told = memo.damage().told("rows");
    run.context.progress().log(&format!("{told}: they are recomputed"));
    run.store.mend_memo(base, memo.damage())?;
    Ok(Memo::open(&run.store, base)?)
}
