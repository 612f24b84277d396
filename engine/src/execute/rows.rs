//! Runs a row kernel: many rows in flight, each memoised as it finishes, output in input order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use arrow::array::{Array, RecordBatch};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use searchmill_schemas::{Reject, text_column};

use super::driver::Stop;
use super::progress::NodeProgress;
use crate::fingerprint::{Digest, RowKey, RowKeys, call_key};
use crate::operator::{
    CallJournal, Context, KeptCall, OperatorError, Outputs, ProgressSink, RowFailure, RowKernel, RowOutput, RowsInput,
    Usage,
};
use crate::spec::OnError;
use crate::store::{Calls, ColumnLineage, Memo};

/// Finished rows may wait for at most so many times the rows in flight before new ones start.
const AHEAD: usize = 64;

/// How a kernel's run ended: what is only known of row kernels and queries.
#[derive(Debug, Default)]
pub(super) struct RowsRun {
    pub(super) usage: Usage,
    pub(super) cached_rows: u64,
    /// Failed rows that `on_error: drop` passed over.
    pub(super) dropped: u64,
    /// Told to stop before all rows were done: what is done is in the memo.
    pub(super) stopped: bool,
    /// Where the rows are remembered.
    pub(super) memo: Option<Digest>,
    /// What the columns of a query's outputs come from.
    pub(super) columns: BTreeMap<String, ColumnLineage>,
    /// Rows without a result.
    pub(super) failed: u64,
    /// The first failed row, when it fails the node. Rows in flight are still awaited and remembered.
    pub(super) failure: Option<OperatorError>,
}

impl RowsRun {
    /// Nothing was paid, and so many rows were known.
    pub(super) fn known(cached_rows: u64) -> Self {
        Self { cached_rows, ..Self::default() }
    }

    /// Of a query, of which nothing else is known.
    pub(super) fn of_query(columns: BTreeMap<String, ColumnLineage>) -> Self {
        Self { columns, ..Self::default() }
    }
}

/// Everything a run of rows needs.
pub(super) struct RowsJob<'a> {
    pub(super) kernel: Arc<dyn RowKernel>,
    pub(super) rows: &'a RowsInput,
    pub(super) keys: RowKeys,
    pub(super) memo: Memo,
    pub(super) calls: Arc<Calls>,
    pub(super) on_error: OnError,
    pub(super) context: Context,
    pub(super) stop: Stop,
    pub(super) progress: Arc<NodeProgress>,
}

struct Done {
    place: usize,
    key: RowKey,
    row_id: String,
    result: Result<RowOutput, RowFailure>,
    cached: bool,
    /// Of its usage, what an earlier run paid.
    replayed: Usage,
}

pub(super) async fn run_rows(mut job: RowsJob<'_>, outputs: &mut Outputs<'_>) -> Result<RowsRun, OperatorError> {
    let samples = job.kernel.samples().max(1);
    let total = job.rows.rows * u64::from(samples);
    let mut pending = tasks(job.rows, samples);
    let mut flying = FuturesUnordered::new();
    let mut waiting: BTreeMap<usize, Done> = BTreeMap::new();
    let mut state = RowsRun::default();
    let (mut next_place, mut next_write, mut exhausted) = (0, 0, false);
    loop {
        while !exhausted
            && flying.len() < job.context.concurrency()
            && waiting.len() < job.context.concurrency() * AHEAD
        {
            if job.stop.is_draining() || state.failure.is_some() {
                state.stopped = true;
                exhausted = true;
                break;
            }
            let Some(task) = pending.next() else {
                exhausted = true;
                break;
            };
            let (row, sample) = task?;
            let place = next_place;
            next_place += 1;
            match recall(&job, place, &row, sample)? {
                Ok(done) => drop(waiting.insert(place, done)),
                Err(_) if is_broke(&job.context) => {
                    state.stopped = true;
                    exhausted = true;
                }
                Err(key) => flying.push(launch(&job, place, row, sample, key)),
            }
        }
        while let Some(done) = waiting.remove(&next_write) {
            next_write += 1;
            write(&job, done, outputs, &mut state)?;
            job.progress.cached_rows.store(state.cached_rows, Ordering::Relaxed);
            job.progress.progress(next_write as u64, total, "rows");
        }
        match flying.next().await {
            Some(done) => {
                let done = done.map_err(|_| OperatorError::engine("a row's task died: a defect of the operator"))?;
                let kept = remember(&mut job.memo, &done).and_then(|()| Ok(job.calls.check()?));
                if let Err(error) = kept {
                    // What is in flight is paid for: there may be room for it.
                    state.failure.get_or_insert(error);
                }
                waiting.insert(done.place, done);
            }
            None if exhausted => break,
            None => {}
        }
    }
    job.memo.sync()?;
    job.calls.close(state.failed == 0 && !state.stopped && state.failure.is_none())?;
    match state.failure.take() {
        Some(error) => Err(error),
        None => Ok(state),
    }
}

/// Was a call refused because the budget is used up, and would rows of this node want more?
fn is_broke(context: &Context) -> bool {
    let outside = context.outside();
    outside.gate.is_some() && outside.purse.refused().is_some()
}

type Task = Result<(RecordBatch, u32), OperatorError>;

/// Rows in input order, all samples of a row together.
fn tasks(rows: &RowsInput, samples: u32) -> impl Iterator<Item = Task> + use<> {
    rows.batches().flat_map(move |batch| {
        let tasks: Vec<Task> = match batch {
            Err(error) => vec![Err(error)],
            Ok(batch) => (0..batch.num_rows())
                .flat_map(|row| {
                    let row = batch.slice(row, 1);
                    (0..samples).map(move |sample| Ok((row.clone(), sample)))
                })
                .collect(),
        };
        tasks
    })
}

/// The remembered result of a row, or its key.
fn recall(
    job: &RowsJob<'_>,
    place: usize,
    row: &RecordBatch,
    sample: u32,
) -> Result<Result<Done, RowKey>, OperatorError> {
    let key = job.keys.key(row, sample).map_err(OperatorError::data)?;
    Ok(match job.memo.get(&key) {
        Some(entry) => {
            let (row_id, result) = (row_id(row, place), Ok(entry.output));
            Ok(Done { place, key, row_id, result, cached: true, replayed: Usage::default() })
        }
        None => Err(key),
    })
}

fn launch(
    job: &RowsJob<'_>,
    place: usize,
    row: RecordBatch,
    sample: u32,
    key: RowKey,
) -> tokio::task::JoinHandle<Done> {
    let journal = Arc::new(RowCalls { calls: Arc::clone(&job.calls), row: key, replayed: Mutex::default() });
    let mut outside = job.context.outside().clone();
    outside.journal = Some(Arc::clone(&journal) as Arc<dyn CallJournal>);
    let (kernel, context) = (Arc::clone(&job.kernel), job.context.clone().with_outside(outside));
    tokio::spawn(async move {
        let result = kernel.run(&row, sample, &context).await;
        Done { place, key, row_id: row_id(&row, place), result, cached: false, replayed: journal.replayed() }
    })
}

/// The calls of one row.
struct RowCalls {
    calls: Arc<Calls>,
    row: RowKey,
    replayed: Mutex<Usage>,
}

impl RowCalls {
    fn replayed(&self) -> Usage {
        *self.replayed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallJournal for RowCalls {
    fn recall(&self, ordinal: u32, request: &[u8]) -> Option<KeptCall> {
        if self.calls.is_empty() {
            return None;
        }
        let call = self.calls.recall(&call_key(&self.row, ordinal, request))?;
        *self.replayed.lock().unwrap_or_else(PoisonError::into_inner) += call.usage;
        Some(call)
    }

    fn keep(&self, ordinal: u32, request: &[u8], call: &KeptCall) {
        self.calls.keep(&self.row, &call_key(&self.row, ordinal, request), call);
    }
}

fn remember(memo: &mut Memo, done: &Done) -> Result<(), OperatorError> {
    match &done.result {
        Ok(output) if !done.cached => Ok(memo.put(&done.key, output)?),
        _ => Ok(()),
    }
}

fn row_id(row: &RecordBatch, place: usize) -> String {
    match text_column(row, "id") {
        Ok(ids) if ids.is_valid(0) => ids.value(0).to_owned(),
        _ => format!("row {place}"),
    }
}

fn write(job: &RowsJob<'_>, done: Done, outputs: &mut Outputs<'_>, state: &mut RowsRun) -> Result<(), OperatorError> {
    match done.result {
        Ok(output) => {
            if done.cached {
                state.cached_rows += 1;
            } else {
                state.usage += output.usage.without(&done.replayed);
            }
            for (port, batch) in &output.batches {
                outputs.write(port, batch)?;
            }
            Ok(())
        }
        Err(failure) => {
            state.usage += failure.usage.without(&done.replayed);
            state.failed += 1;
            refuse(job, &done.row_id, failure, outputs, state)
        }
    }
}

fn refuse(
    job: &RowsJob<'_>,
    row_id: &str,
    failure: RowFailure,
    outputs: &mut Outputs<'_>,
    state: &mut RowsRun,
) -> Result<(), OperatorError> {
    if failure.kind.is_postponed() {
        state.stopped = true;
        return Ok(());
    }
    let kind = failure.kind.name();
    match job.on_error {
        OnError::Drop => {
            state.dropped += 1;
            Ok(())
        }
        OnError::Fail => {
            let message =
                format!("row `{row_id}` failed ({kind}, attempts: {}): {}", failure.attempts, failure.message);
            let error = OperatorError::data(message).with_help("`on_error: dead_letter` lets the other rows go on");
            state.failure.get_or_insert(error);
            Ok(())
        }
        OnError::DeadLetter => outputs.reject(Reject {
            id: row_id.to_owned(),
            kind: kind.to_owned(),
            message: failure.message,
            attempts: i32::try_from(failure.attempts).unwrap_or(i32::MAX),
            detail: failure.detail,
        }),
    }
}
