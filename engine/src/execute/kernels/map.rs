//! Runs a row-wise kernel over batches in parallel; output stays in input order. Parts of the input mapped before are
//! reused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arrow::array::RecordBatch;

use crate::error::OperatorError;
use crate::fingerprint::{Digest, RowKey};
use crate::operator::{Context, MapKernel, MapOutput, RowsInput, stack_size};
use crate::store::{Block, Blocks, StoreSink};

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
pub(super) struct MapJob<'a> {
    pub(crate) kernel: Arc<dyn MapKernel>,
    pub(crate) rows: &'a RowsInput,
    pub(crate) blocks: &'a Blocks,
    pub(crate) context: &'a Context,
}

/// Maps all rows: a reader cuts the input, a pool maps the pieces, this thread writes them in order. At most a few
/// pieces per thread are in flight. Returns the number of known rows.
pub(super) fn run_map(job: &MapJob<'_>, sink: &mut StoreSink) -> Result<u64, OperatorError> {
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
