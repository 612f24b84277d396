//! Runs a row-wise kernel over batches in parallel; output stays in input order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arrow::array::RecordBatch;
use searchmill_schemas::to_batch;

use crate::operator::{Context, MapKernel, MapOutput, OperatorError, Outputs, RowsInput};

/// Most rows that one task maps.
const SLICE_ROWS: usize = 1024;
/// Fewest: below this the hand-over costs more than it brings.
const LEAST_SLICE_ROWS: usize = 16;

type Mapped = Result<(usize, MapOutput), OperatorError>;
type Slot = Receiver<Mapped>;

/// A reader cuts the input, a pool maps the pieces, this thread writes them in order. At most a few pieces a thread are
/// in flight.
pub(super) fn run_map(
    kernel: &Arc<dyn MapKernel>,
    rows: &RowsInput,
    outputs: &mut Outputs<'_>,
    context: &Context,
) -> Result<(), OperatorError> {
    let threads = context.threads();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| OperatorError::machine(format!("cannot start {threads} threads: {error}")))?;
    let abandoned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (slots, ordered) = sync_channel::<Slot>(threads * 3);
        let batches = rows.batches();
        let slice = slice_rows(rows.rows, threads);
        let (pool, abandoned) = (&pool, &abandoned);
        scope.spawn(move || feed(kernel, batches, slice, pool, &slots, abandoned));
        let written = write_in_order(&ordered, rows.rows, outputs, context);
        abandoned.store(true, Ordering::Relaxed);
        drop(ordered);
        written
    })
}

fn feed(
    kernel: &Arc<dyn MapKernel>,
    batches: impl Iterator<Item = Result<RecordBatch, OperatorError>>,
    slice: usize,
    pool: &rayon::ThreadPool,
    slots: &SyncSender<Slot>,
    abandoned: &AtomicBool,
) {
    for batch in batches {
        for piece in pieces(batch, slice) {
            let (sender, slot) = sync_channel(1);
            if abandoned.load(Ordering::Relaxed) || slots.send(slot).is_err() {
                return;
            }
            let kernel = Arc::clone(kernel);
            pool.spawn(move || {
                // The receiver is gone only when the node has already failed.
                drop(sender.send(map_piece(kernel.as_ref(), piece)));
            });
        }
    }
}

/// Small tables are cut small, so that all threads have work and progress is seen; the rows that come out are the same.
fn slice_rows(rows: u64, threads: usize) -> usize {
    let share = usize::try_from(rows).unwrap_or(usize::MAX) / (threads * 8);
    share.clamp(LEAST_SLICE_ROWS, SLICE_ROWS)
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

fn write_in_order(
    ordered: &Receiver<Slot>,
    total: u64,
    outputs: &mut Outputs<'_>,
    context: &Context,
) -> Result<(), OperatorError> {
    let progress = context.progress();
    let mut done = 0;
    for slot in ordered {
        context.check_cancelled()?;
        let died = |_| OperatorError::engine("a worker thread died: this is a defect of the operator");
        let (rows, output) = slot.recv().map_err(died)??;
        for (port, batch) in &output.batches {
            outputs.write(port, batch)?;
        }
        if !output.rejects.is_empty() {
            outputs.write("rejects", &to_batch(&output.rejects)?)?;
        }
        done += rows as u64;
        progress.set(done, total, "rows");
    }
    Ok(())
}
