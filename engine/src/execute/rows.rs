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
    AsyncMapKernel, CallJournal, Context, FailureKind, OperatorError, Outputs, ProgressSink, RowFailure, RowOutput,
    RowsInput, Usage,
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
    rows.tell(&job, outputs);
    let synced = job.memo.sync().and_then(|()| job.run.calls.as_ref().map_or(Ok(()), |calls| calls.sync()));
    let synced = synced.and_then(|()| job.run.observed.sync());
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
    /// Sums of the written rows' figures.
    sums: BTreeMap<&'static str, f64>,
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
        sums: BTreeMap::new(),
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
            None if !job.run.finishes && is_broke(&job.run.context) => {
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
            for (name, value) in done.result.iter().flat_map(|output| job.kernel.figures(output)) {
                *self.sums.entry(name).or_default() += value;
            }
            write(job, done, outputs, &mut self.state)?;
            job.run.progress.cached_rows.store(self.state.cached_rows, Ordering::Relaxed);
            job.run.progress.set(self.next_write as u64, self.total, "rows");
        }
        Ok(())
    }

    /// Records the sums of figures.
    fn tell(&self, job: &RowsJob<'_>, outputs: &mut Outputs<'_>) {
        for (name, value) in &self.sums {
            outputs.figure(name, *value);
        }
        let text = job.kernel.summary(&self.sums);
        if !text.is_empty() {
            outputs.summary(&text);
        }
    }

    /// Remembers a row that was in flight.
    fn keep(&mut self, job: &mut RowsJob<'_>, done: Result<Done, JoinError>) -> Result<(), OperatorError> {
        let done = done.map_err(|_| OperatorError::engine("a row's task panicked: this is a bug in the operator"))?;
        let remembered = remember(&mut job.memo, &done);
        self.waiting.insert(done.place, done);
        remembered?;
        job.kernel.fault().map_or(Ok(()), Err)?;
        job.run.observed.check()?;
        Ok(job.run.calls.as_ref().map_or(Ok(()), |calls| calls.check())?)
    }
}

/// Whether a call was refused because the budget is used up, and this node may need more calls.
fn is_broke(context: &Context) -> bool {
    let session = context.session();
    session.limiters().next().is_some() && session.budget.refused().is_some()
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
    let observed = job.run.observed.join(&mut session, Some(&task.key), job.since);
    let (kernel, context) = (Arc::clone(&job.kernel), job.run.context.clone().with_session(session));
    tokio::spawn(async move {
        let RowTask { place, row, sample, key, .. } = task;
        let result = kernel.run(&row, sample, &context).await;
        let mut replayed = journal.map(|journal| journal.replayed()).unwrap_or_default();
        replayed += observed.replayed();
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
    if failure.kind == FailureKind::Budget && job.run.finishes {
        state.unasked += 1;
        return outputs.reject(failure.reject(row_id));
    }
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use searchmill_schemas::Question;

    use super::*;
    use crate::execute::observed::Observed;
    use crate::execute::progress::NodeProgress;
    use crate::execute::stop::Stop;
    use crate::fingerprint::{SeenSources, hash_bytes};
    use crate::operator::testing::rows_input;
    use crate::operator::{ContextParts, InputArtifact, Inputs, OutputSink};
    use crate::store::Store;

    /// Each row takes a while, and the first one less; it counts the rows that end.
    struct Slow(Arc<AtomicUsize>);

    impl AsyncMapKernel for Slow {
        fn reads(&self) -> Vec<String> {
            vec!["question".to_owned()]
        }

        fn run<'a>(
            &'a self,
            row: &'a RecordBatch,
            _sample: u32,
            _context: &'a Context,
        ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
            let first = row_id(row, 0) == "q0";
            async move {
                tokio::time::sleep(Duration::from_millis(if first { 1 } else { 200 })).await;
                assert!(!row_id(row, 0).ends_with('3'), "a bug in the operator");
                self.0.fetch_add(1, Ordering::SeqCst);
                let batches = vec![("questions".to_owned(), row.clone())];
                Ok(RowOutput { batches, usage: Usage::default() })
            }
            .boxed()
        }
    }

    /// A full disk, or one that is not.
    struct Disk {
        full: bool,
    }

    impl OutputSink for Disk {
        fn write(&mut self, _port: &str, _batch: &RecordBatch) -> Result<(), OperatorError> {
            if self.full { Err(OperatorError::machine("no space left")) } else { Ok(()) }
        }

        fn tree(&mut self, _port: &str) -> Result<PathBuf, OperatorError> {
            Err(OperatorError::engine("no trees"))
        }

        fn figure(&mut self, _name: &str, _value: f64) {}

        fn summary(&mut self, _text: &str) {}
    }

    /// Runs rows on a store with four in flight; returns the outcome and the number of rows that ended.
    fn run(store: &Store, rows: u32, disk: &mut Disk) -> (Result<RowsRun, OperatorError>, usize) {
        let question = |i: u32| Question {
            id: format!("q{i}"),
            question: format!("What is {i}?"),
            golden_answers: Vec::new(),
            question_type: None,
            evidence: Vec::new(),
            metadata: None,
        };
        let questions: Vec<Question> = (0..rows).map(question).collect();
        let InputArtifact::Rows(input) = rows_input(&questions) else { panic!("a table") };
        let ended = Arc::new(AtomicUsize::new(0));
        let base = hash_bytes(b"base");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let bare = ContextParts::bare(store.root(), runtime.handle(), reqwest::Client::new());
        let run = KernelRun {
            inputs: Inputs::new(),
            main_port: None,
            context: Context::new(ContextParts { concurrency: 4, ..bare }),
            row_base: base,
            block_base: base,
            recall_blocks: false,
            on_error: OnError::DeadLetter,
            finishes: false,
            stop: Stop::default(),
            progress: Arc::new(NodeProgress::unseen()),
            store: store.clone(),
            calls: None,
            observed: Observed::default(),
            sources: Arc::new(SeenSources::default()),
        };
        let kernel = Arc::new(Slow(Arc::clone(&ended)));
        let keys = RowKeys::new(base, kernel.reads());
        let memo = Memo::open(store, &base).unwrap();
        let job = RowsJob { run: &run, kernel, rows: &input, keys, memo, since: 0 };
        let outcome = runtime.block_on(run_rows(job, disk));
        (outcome, ended.load(Ordering::SeqCst))
    }

    #[test]
    fn rows_in_flight_are_awaited_and_remembered_when_the_disk_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (outcome, ended) = run(&store, 3, &mut Disk { full: true });
        assert!(outcome.is_err_and(|error| error.message == "no space left"));
        assert_eq!(ended, 3, "two rows were in flight when the first could not be written");
        let (outcome, ended) = run(&store, 3, &mut Disk { full: false });
        assert_eq!((outcome.unwrap().cached_rows, ended), (3, 0), "nothing is computed again");
    }

    #[test]
    fn rows_beside_one_that_panics_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (outcome, ended) = run(&store, 4, &mut Disk { full: false });
        assert!(outcome.is_err_and(|error| error.message.contains("panicked")));
        assert_eq!(ended, 3);
        let (outcome, ended) = run(&store, 3, &mut Disk { full: false });
        assert_eq!((outcome.unwrap().cached_rows, ended), (3, 0));
    }
}
