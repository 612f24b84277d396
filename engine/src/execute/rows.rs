//! Runs a row kernel: many rows in flight, each remembered when it finishes, output in input order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, RecordBatch};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use searchmill_schemas::text_column;
use tokio::task::{JoinError, JoinHandle};

use super::job::{KernelRun, RowsRun};
use super::row_calls::{RowCalls, read_calls};
use crate::fingerprint::{CallPlace, RowIdentity, RowKey, RowKeys};
use crate::operator::{
    AsyncMapKernel, CallJournal, Context, OperatorError, Outputs, ProgressSink, RowFailure, RowOutput, RowsInput, Usage,
};
use crate::spec::OnError;
use crate::store::Memo;

/// Finished rows waiting to be written, as a multiple of the rows in flight (at most).
const AHEAD: usize = 64;

/// The rows of a node, and what is known of them.
pub(super) struct RowsJob<'a> {
    pub(super) run: &'a KernelRun,
    pub(super) kernel: Arc<dyn AsyncMapKernel>,
    pub(super) rows: &'a RowsInput,
    pub(super) keys: RowKeys,
    pub(super) memo: Memo,
    /// Earlier answers do not count.
    pub(super) since: u64,
}

struct Done {
    place: usize,
    key: RowKey,
    row_id: String,
    result: Result<RowOutput, RowFailure>,
    cached: bool,
    /// The part of the usage that an earlier run paid.
    replayed: Usage,
}

pub(super) async fn run_rows(mut job: RowsJob<'_>, outputs: &mut Outputs<'_>) -> Result<RowsRun, OperatorError> {
    let mut rows = rows_of(&job);
    loop {
        let filled = rows.fill(&mut job);
        rows.unless_failed(filled);
        let written = rows.write(&job, outputs);
        rows.unless_failed(written);
        match rows.flying.next().await {
            Some(done) => {
                let kept = rows.keep(&mut job, done);
                rows.unless_failed(kept);
            }
            None if rows.exhausted => break,
            None => {}
        }
    }
    let synced = job.memo.sync().and_then(|()| job.run.calls.as_ref().map_or(Ok(()), |calls| calls.sync()));
    match rows.state.failure.take() {
        Some(error) => Err(error),
        None => Ok(synced.map(|()| rows.state)?),
    }
}

/// The rows of a node on their way from input to output.
struct Rows<T> {
    pending: T,
    flying: FuturesUnordered<JoinHandle<Done>>,
    /// Finished rows that wait for earlier ones, by place.
    waiting: BTreeMap<usize, Done>,
    state: RowsRun,
    total: u64,
    next_place: usize,
    next_write: usize,
    exhausted: bool,
    identity: Option<RowIdentity>,
    calls_read: bool,
}

fn rows_of(job: &RowsJob<'_>) -> Rows<impl Iterator<Item = Task> + use<>> {
    let samples = job.kernel.samples().max(1);
    Rows {
        pending: tasks(job.rows, samples),
        flying: FuturesUnordered::new(),
        waiting: BTreeMap::new(),
        state: RowsRun::default(),
        total: job.rows.rows * u64::from(samples),
        next_place: 0,
        next_write: 0,
        exhausted: false,
        identity: None,
        calls_read: false,
    }
}

impl<T: Iterator<Item = Task>> Rows<T> {
    /// Fails the node, but not before the rows in flight: they are paid for, and are awaited and remembered.
    fn unless_failed(&mut self, outcome: Result<(), OperatorError>) {
        if let Err(error) = outcome {
            self.state.failure.get_or_insert(error);
        }
    }

    /// Starts rows until enough are in flight.
    fn fill(&mut self, job: &mut RowsJob<'_>) -> Result<(), OperatorError> {
        let most = job.run.context.concurrency();
        while !self.exhausted && self.flying.len() < most && self.waiting.len() < most * AHEAD {
            if job.run.stop.is_draining() || self.state.failure.is_some() {
                self.state.stopped = true;
                self.exhausted = true;
                break;
            }
            match self.pending.next() {
                Some(task) => self.start(job, task)?,
                None => self.exhausted = true,
            }
        }
        Ok(())
    }

    fn start(&mut self, job: &mut RowsJob<'_>, task: Task) -> Result<(), OperatorError> {
        let (row, sample) = task?;
        let place = self.next_place;
        self.next_place += 1;
        if sample == 0 {
            self.identity = Some(job.keys.identify(&row).map_err(OperatorError::data)?);
        }
        let Some(identity) = self.identity else { return Err(OperatorError::engine("a row without a first sample")) };
        let task = RowTask { place, row, sample, key: job.keys.key(&identity, sample), identity };
        match recall(job, &task) {
            Some(done) => drop(self.waiting.insert(place, done)),
            None if is_broke(&job.run.context) => {
                self.state.stopped = true;
                self.exhausted = true;
            }
            None => {
                if !std::mem::replace(&mut self.calls_read, true) {
                    job.run.calls.as_ref().map_or(Ok(()), |calls| read_calls(calls, &job.run.context))?;
                }
                self.flying.push(launch(job, task));
            }
        }
        Ok(())
    }

    /// Writes the finished rows that are next in input order.
    fn write(&mut self, job: &RowsJob<'_>, outputs: &mut Outputs<'_>) -> Result<(), OperatorError> {
        while self.state.failure.is_none()
            && let Some(done) = self.waiting.remove(&self.next_write)
        {
            self.next_write += 1;
            write(job, done, outputs, &mut self.state)?;
            job.run.progress.cached_rows.store(self.state.cached_rows, Ordering::Relaxed);
            job.run.progress.set(self.next_write as u64, self.total, "rows");
        }
        Ok(())
    }

    /// Remembers a row that was in flight.
    fn keep(&mut self, job: &mut RowsJob<'_>, done: Result<Done, JoinError>) -> Result<(), OperatorError> {
        let done = done.map_err(|_| OperatorError::engine("a row's task panicked: this is a bug in the operator"))?;
        let remembered = remember(&mut job.memo, &done);
        self.waiting.insert(done.place, done);
        remembered?;
        Ok(job.run.calls.as_ref().map_or(Ok(()), |calls| calls.check())?)
    }
}

/// Whether a call was refused because the budget is used up, and this node may need more calls.
fn is_broke(context: &Context) -> bool {
    let session = context.session();
    session.limiter.is_some() && session.budget.refused().is_some()
}

type Task = Result<(RecordBatch, u32), OperatorError>;

/// Returns the rows in input order, all samples of a row together.
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

/// One sample of one row.
struct RowTask {
    place: usize,
    row: RecordBatch,
    sample: u32,
    identity: RowIdentity,
    key: RowKey,
}

/// Returns the remembered result of a row, with the row's current labels.
fn recall(job: &RowsJob<'_>, task: &RowTask) -> Option<Done> {
    let (row_id, key, place) = (row_id(&task.row, task.place), task.key, task.place);
    let output = job.memo.get(&key).find_map(|output| job.kernel.label(&task.row, task.sample, output))?;
    Some(Done { place, key, row_id, result: Ok(output), cached: true, replayed: Usage::default() })
}

fn launch(job: &RowsJob<'_>, task: RowTask) -> JoinHandle<Done> {
    let mut session = job.run.context.session().clone();
    let place = CallPlace {
        seed: job.run.context.seed(),
        sample: task.sample,
        occurrence: task.identity.occurrence,
        ..CallPlace::default()
    };
    let journal = job.run.calls.as_ref().map(|calls| Arc::new(RowCalls::new(Arc::clone(calls), place, job.since)));
    session.journal = journal.clone().map(|journal| journal as Arc<dyn CallJournal>);
    let (kernel, context) = (Arc::clone(&job.kernel), job.run.context.clone().with_session(session));
    tokio::spawn(async move {
        let RowTask { place, row, sample, key, .. } = task;
        let result = kernel.run(&row, sample, &context).await;
        let replayed = journal.map(|journal| journal.replayed()).unwrap_or_default();
        Done { place, key, row_id: row_id(&row, place), result, cached: false, replayed }
    })
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
    match job.run.on_error {
        OnError::Drop => {
            state.dropped += 1;
            Ok(())
        }
        OnError::Fail => {
            let (kind, attempts) = (failure.kind.name(), failure.attempts);
            let message = format!("row `{row_id}` failed ({kind}, attempts: {attempts}): {}", failure.message);
            let error = OperatorError::data(message).with_help("`on_error: dead_letter` keeps the other rows");
            state.failure.get_or_insert(error);
            Ok(())
        }
        OnError::DeadLetter => outputs.reject(failure.reject(row_id)),
    }
}
