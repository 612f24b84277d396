//! Runs the kernel of a node into its outputs. `run_kernel` chooses: `map` for `Map`, `rows` for `AsyncMap`, `query`
//! for `Query`; a `Blocking` kernel is one call.
//!
//! `map` cuts the outputs where a part of the input ends, and stores the result of each part under its block key. A
//! part that reappears is not mapped: its outputs are linked from the artifact that contains them
//! (`store::memo::map_blocks`). A full run gives the same bytes.
//!
//! `rows` starts rows in order. They finish in any order, are cached when they finish, and are written in input order.
//! A failed row becomes a row of `rejects`. The node's result is recorded, and the next run of an external node tries
//! only the failed rows again and pays only for them. With `until`, `samples` says which sample is next; it also runs
//! the kernel for one sample, in a run, an estimate or an audit. `call_journal` is the journal of `Context::call`, and of
//! the calls to services beside the endpoint. `dry_run` runs the kernel with a budget of 0 calls to count rows whose
//! answers are all cached.
//!
//! `kernel_run` is what a kernel gets and what it gives. A result whose sources changed while they were read is discarded.

pub(super) mod kernel_run;
pub(super) mod column_lineage;
pub(super) mod query;
pub(super) mod map;
pub(super) mod call_journal;
pub(super) mod samples;
pub(super) mod rows;
pub(super) mod dry_run;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;

use self::kernel_run::{KernelRun, RowsRun};
use self::map::{MapJob, run_map};
use self::query::run_query;
use self::rows::{RowsJob, run_rows};
use crate::error::OperatorError;
use crate::fingerprint::{Digest, RowKeys, base_on};
use crate::operator::{BoundOperator, Computed, Declaration, InputArtifact, Kernel, OutputSink};
use crate::store::{Blocks, Memo, StoreSink};

/// Opens and runs the kernel. `declared` lists the sources as the key saw them, without addresses of services.
/// Blocking.
pub(crate) fn run_kernel(
    operator: &BoundOperator,
    declared: &Declaration,
    run: &KernelRun,
    sink: &mut StoreSink,
) -> Result<RowsRun, OperatorError> {
    match run_whole(operator, declared, run, sink) {
        // At `--limit`, the sink ends the source by failing its write.
        Err(_) if sink.limit_reached() => Ok(RowsRun::default()),
        done => done,
    }
}

fn run_whole(
    operator: &BoundOperator,
    declared: &Declaration,
    run: &KernelRun,
    sink: &mut StoreSink,
) -> Result<RowsRun, OperatorError> {
    let mut context = run.context.clone();
    // Opening may ask services for their tools: these answers are remembered, too.
    if !run.observed.caches.is_empty() {
        run.observed.read(&context)?;
        context = run.observed.context(context, run.since()?);
    }
    let kernel = operator.open(&run.inputs, &context)?;
    // Opening may load a model: check that its files are those named by the key.
    if let Some(what) = run.sources.differs(&declared.sources(&run.context.resolve(""))) {
        return Err(OperatorError::changed(&what));
    }
    match kernel {
        Kernel::Blocking(kernel) => {
            kernel.run(&run.inputs, sink, &run.context)?;
            Ok(RowsRun::default())
        }
        Kernel::Map(kernel) => {
            let rows = run.main_rows()?;
            let base = where_computed(operator, run, run.block_base);
            let blocks = Blocks::open(&run.store, &base, run.recall_blocks)?;
            let job = MapJob { kernel, rows, blocks: &blocks, context: &run.context };
            Ok(RowsRun { cached_rows: run_map(&job, sink)?, memo: Some(base), ..RowsRun::default() })
        }
        Kernel::Query(kernel) => {
            let columns = run.context.block_on(run_query(kernel.as_ref(), &run.inputs, sink, &run.context))?;
            Ok(RowsRun { columns, ..RowsRun::default() })
        }
        Kernel::AsyncMap(kernel) => {
            // Answers of an endpoint are not computed here.
            let base = if run.calls.is_some() { run.row_base } else { where_computed(operator, run, run.row_base) };
            let keys = RowKeys::new(base, kernel.reads());
            let since = run.since()?;
            run.store.tidy_memo(&base);
            let mut memo = Memo::open(&run.store, &base)?;
            if memo.damage().lost > 0 {
                run.context.progress().log(&format!("{}: they are recomputed", memo.damage().text("rows")));
                run.store.mend_memo(&base, memo.damage())?;
                memo = Memo::open(&run.store, &base)?;
            }
            let memo = memo.since(since);
            let rows = run.main_rows()?;
            let goal = operator.declaration.goal();
            let job = RowsJob { run, kernel, rows, keys, goal, memo, since };
            let done = run.context.block_on(run_rows(job, sink))?;
            write_columns(operator, run, sink)?;
            let asked = run.calls.as_ref().map(|calls| calls.base());
            let observed = run.observed.caches.iter().map(|calls| calls.base()).collect();
            Ok(RowsRun { memo: Some(base), since, asked, observed, ..done })
        }
    }
}

/// Writes the columns that the operator adds, also if no row is left: a later node may refer to them.
fn write_columns(operator: &BoundOperator, run: &KernelRun, sink: &mut StoreSink) -> Result<(), OperatorError> {
    let mut inputs = BTreeMap::new();
    for (port, bound) in run.inputs.iter() {
        if let [InputArtifact::Rows(rows)] = bound {
            inputs.insert(port.to_owned(), Arc::clone(&rows.schema));
        }
    }
    let (outputs, _) = operator.declaration.tables.apply(&inputs, false);
    for (port, schema) in outputs {
        sink.write(&port, &RecordBatch::new_empty(schema))?;
    }
    Ok(())
}

/// Keeps rows and parts apart by what computes them, if the kernel depends on more than its operator declares: a model
/// in an index, a GPU.
fn where_computed(operator: &BoundOperator, run: &KernelRun, base: Digest) -> Digest {
    let (declared, met) = (Computed::declared(operator.declaration.repeatability), run.context.computed());
    if met.on.is_empty() || met.on == declared.on { base } else { base_on(&base, &met.on) }
}
