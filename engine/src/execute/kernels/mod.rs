//! Runs the kernel of a node into its outputs. `run_kernel` chooses: `run_map` for `Map`, `rows` for `AsyncMap`,
//! `query` for `Query`; a `Blocking` kernel is one call.
//!
//! `run_map` maps batches in parallel; output stays in input order. It cuts the outputs where a part of the input ends, and
//! stores the result of each part under its block key. A part that reappears is not mapped: its outputs are linked from
//! the artifact that contains them (`store::memo::map_blocks`). A full run gives the same bytes.
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
pub(super) mod call_journal;
pub(super) mod samples;
pub(super) mod rows;
pub(super) mod dry_run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arrow::array::RecordBatch;

use self::kernel_run::{KernelRun, RowsRun};
use self::query::run_query;
use self::rows::{RowsJob, run_rows};
use crate::error::OperatorError;
use crate::fingerprint::{Digest, RowKey, RowKeys, base_on};
use crate::operator::{
    BoundOperator, Computed, Context, Declaration, InputArtifact, Kernel, MapKernel, MapOutput, OutputSink, RowsInput,
    stack_size,
};
use crate::store::{Block, Blocks, Memo, StoreSink};

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

/// Rows per task (at most).
const SLICE_ROWS: usize = 1024;
/// Rows per task (at least): smaller tasks cost more in hand-over than they gain.
const LEAST_SLICE_ROWS: usize = 16;

type Mapped = Result<(usize, MapOutput), OperatorError>;

/// An item for the writing thread, in input order.
enum Slot {
    /// A piece being mapped.
    Piece(Receiver<Mapped>),
    /// The end of a part with this many rows; its output can be reused under the key.
    End(RowKey, u64),
    /// The remembered output of a part, and the part's number.
    Known(RowKey, Block, usize),
}

/// A kernel and its input.
struct MapJob<'a> {
    kernel: Arc<dyn MapKernel>,
    rows: &'a RowsInput,
    blocks: &'a Blocks,
    context: &'a Context,
}

/// Maps all rows: a reader cuts the input, a pool maps the pieces, this thread writes them in order. At most a few
/// pieces per thread are in flight. Returns the number of known rows.
fn run_map(job: &MapJob<'_>, sink: &mut StoreSink) -> Result<u64, OperatorError> {
    let threads = job.context.threads();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .stack_size(stack_size())
        .build()
        .map_err(|error| OperatorError::machine(format!("cannot start {threads} threads: {error}")))?;
    // Small tables are cut smaller, so that all threads have work and progress is visible; the output is the same.
    let share = usize::try_from(job.rows.rows).unwrap_or(usize::MAX) / (threads * 8);
    let slice = share.clamp(LEAST_SLICE_ROWS, SLICE_ROWS);
    let abandoned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (slots, ordered) = sync_channel::<Slot>(threads * 3);
        let (pool, abandoned) = (&pool, &abandoned);
        scope.spawn(move || feed(job, pool, &slots, abandoned, slice));
        let written = write(job, sink, &ordered);
        // After a failure, the feeding thread must not wait for a place in the queue, nor map what nobody writes.
        abandoned.store(true, Ordering::Relaxed);
        drop(ordered);
        written
    })
}

/// Cuts the input into pieces of `slice` rows for the pool, and sends a slot for each. Returns `None` if the writer has
/// stopped.
fn feed(
    job: &MapJob<'_>,
    pool: &rayon::ThreadPool,
    slots: &SyncSender<Slot>,
    abandoned: &AtomicBool,
    slice: usize,
) -> Option<()> {
    for part in 0..job.rows.parts().len() {
        let digest = job.rows.part_digest(part).and_then(Digest::parse);
        let key = digest.map(|digest| job.blocks.key(&digest));
        if let Some(key) = key
            && let Some(block) = job.blocks.find(&key)
        {
            send(slots, abandoned, Slot::Known(key, block, part))?;
            continue;
        }
        let mut rows = 0;
        for batch in job.rows.part_batches(part) {
            rows += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
            for piece in pieces(batch, slice) {
                let (sender, slot) = sync_channel(1);
                // Before the piece is mapped: the queue limits how many are in flight.
                send(slots, abandoned, Slot::Piece(slot))?;
                let kernel = Arc::clone(&job.kernel);
                pool.spawn(move || {
                    // Sending fails only when the node has already failed.
                    drop(sender.send(map_piece(kernel.as_ref(), piece)));
                });
            }
        }
        if let Some(key) = key {
            send(slots, abandoned, Slot::End(key, rows))?;
        }
    }
    Some(())
}

fn send(slots: &SyncSender<Slot>, abandoned: &AtomicBool, slot: Slot) -> Option<()> {
    if abandoned.load(Ordering::Relaxed) { None } else { slots.send(slot).ok() }
}

fn pieces(batch: Result<RecordBatch, OperatorError>, slice: usize) -> Vec<Result<RecordBatch, OperatorError>> {
    match batch {
        Err(error) => vec![Err(error)],
        Ok(batch) => (0..batch.num_rows())
            .step_by(slice)
            .map(|start| Ok(batch.slice(start, slice.min(batch.num_rows() - start))))
            .collect(),
    }
}

fn map_piece(kernel: &dyn MapKernel, piece: Result<RecordBatch, OperatorError>) -> Mapped {
    let piece = piece?;
    let mut output = MapOutput::default();
    kernel.map(&piece, &mut output)?;
    Ok((piece.num_rows(), output))
}

/// Writes the slots in order and returns the number of known rows.
fn write(job: &MapJob<'_>, sink: &mut StoreSink, ordered: &Receiver<Slot>) -> Result<u64, OperatorError> {
    let (mut done, mut known) = (0, 0);
    for slot in ordered {
        job.context.check_cancelled()?;
        match slot {
            Slot::Piece(piece) => {
                let Ok(mapped) = piece.recv() else {
                    return Err(OperatorError::engine("a worker thread panicked: this is a bug in the operator"));
                };
                let (rows, output) = mapped?;
                output.write(sink)?;
                done += rows as u64;
            }
            Slot::End(key, rows) => sink.end_block(key, rows)?,
            Slot::Known(key, block, part) => {
                done += block.rows;
                if sink.adopt_block(key, &block)? {
                    known += block.rows;
                } else {
                    // The block's columns differ from those of the rows before it: recomputed, the part fits or fails
                    // as it would without the memo.
                    for batch in job.rows.part_batches(part) {
                        let (_, output) = map_piece(job.kernel.as_ref(), batch)?;
                        output.write(sink)?;
                    }
                    sink.end_block(key, block.rows)?;
                }
            }
        }
        job.context.progress().set(done, job.rows.rows, "rows");
    }
    Ok(known)
}
