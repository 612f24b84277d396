//! Runs a row kernel: many rows in flight, each remembered when it finishes, output in input order.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use searchmill_schemas::text_column;
use tokio::task::{JoinError, JoinHandle};

use super::call_journal::{RowCalls, read_calls};
use super::kernel_run::{KernelRun, RowsRun};
use super::samples::{Drawing, Pending, Sample};
use crate::endpoint::{CallJournal, FailureKind, RowFailure, Usage};
use crate::error::OperatorError;
use crate::fingerprint::{RowKey, RowKeys};
use crate::operator::{AsyncMapKernel, COUNTED, DRAWN, Goal, Outputs, RowOutput, RowsInput};
use crate::spec::OnError;
use crate::store::{Memo, StoreError};

/// Finished rows waiting to be written, as a multiple of the rows in flight (at most).
const AHEAD: usize = 64;

/// The rows of a node, and what is known of them.
pub(super) struct RowsJob<'a> {
    pub(crate) run: &'a KernelRun,
    pub(crate) kernel: Arc<dyn AsyncMapKernel>,
    pub(crate) rows: &'a RowsInput,
    pub(crate) keys: RowKeys,
    /// When no more samples are drawn.
    pub(crate) goal: Option<Goal>,
    pub(crate) memo: Memo,
    /// Earlier answers do not count.
    pub(crate) since: u64,
}

struct Done {
    /// Place among the samples that were started.
    number: usize,
    /// Place of the row in the input.
    place: usize,
    key: RowKey,
    row_id: String,
    result: Result<RowOutput, RowFailure>,
    /// How many of its rows count towards the goal.
    counts: u64,
    cached: bool,
    /// The part of the usage that an earlier run paid.
    replayed: Usage,
}

impl Done {
    /// A result that is not from the memo and used no remembered answers.
    fn new(sample: &Sample, number: usize, result: Result<RowOutput, RowFailure>) -> Self {
        let row_id = row_id(&sample.row, number);
        let replayed = Usage::default();
        Self { number, place: sample.place, key: sample.key, row_id, result, counts: 0, cached: false, replayed }
    }
}

pub(super) async fn run_rows(mut job: RowsJob<'_>, outputs: &mut Outputs<'_>) -> Result<RowsRun, OperatorError> {
    let mut rows = Rows::new(&job);
    loop {
        let filled = rows.fill(&mut job, outputs);
        rows.unless_failed(filled);
        match rows.flying.next().await {
            Some(done) => {
                let landed = rows.land(&mut job, done);
                rows.unless_failed(landed);
            }
            None if rows.exhausted => break,
            None => {}
        }
    }
    rows.report_outcome(&job, outputs);
    // Also after a failure: the finished rows are paid for.
    let synced = sync(&mut job);
    match rows.state.failure.take() {
        Some(error) => Err(error),
        None => Ok(synced.map(|()| rows.state)?),
    }
}

fn sync(job: &mut RowsJob<'_>) -> Result<(), StoreError> {
    job.memo.sync()?;
    if let Some(calls) = &job.run.calls {
        calls.sync()?;
    }
    job.run.observed.sync()
}

/// The rows of a node on their way from input to output.
struct Rows {
    pending: Drawing,
    flying: FuturesUnordered<JoinHandle<Done>>,
    /// Finished rows that wait for earlier ones, by number.
    waiting: BTreeMap<usize, Done>,
    /// Sums of the written rows' figures.
    sums: BTreeMap<&'static str, f64>,
    state: RowsRun,
    total: u64,
    next_number: usize,
    next_write: usize,
    exhausted: bool,
    calls_read: bool,
}

impl Rows {
    fn new(job: &RowsJob<'_>) -> Self {
        let samples = job.kernel.samples().max(1);
        let all = job.rows.rows * u64::from(samples);
        Self {
            pending: Drawing::new(job.rows, samples, job.goal, job.keys.clone()),
            flying: FuturesUnordered::new(),
            waiting: BTreeMap::new(),
            sums: BTreeMap::new(),
            state: RowsRun::default(),
            total: job.goal.map_or(all, |goal| goal.rows),
            next_number: 0,
            next_write: 0,
            exhausted: false,
            calls_read: false,
        }
    }

    /// Fails the node, but not before the rows in flight: they are paid for, and are awaited and remembered.
    fn unless_failed(&mut self, outcome: Result<(), OperatorError>) {
        if let Err(error) = outcome {
            self.state.failure.get_or_insert(error);
        }
    }

    /// Writes finished rows, and starts rows until enough are in flight.
    fn fill(&mut self, job: &mut RowsJob<'_>, outputs: &mut Outputs<'_>) -> Result<(), OperatorError> {
        let most = job.run.context.concurrency();
        loop {
            // First, because writing may reach the goal or meet a failure.
            self.write(job, outputs)?;
            // Starts no more rows once the goal is reached, the node has failed, or the run is stopping. Finished rows may
            // wait then that are never written.
            self.exhausted |= self.pending.draw().is_some_and(|draw| draw.is_reached());
            if !self.exhausted && (job.run.context.is_draining() || self.state.failure.is_some()) {
                self.state.stopped = true;
                self.exhausted = true;
            }
            if self.exhausted || self.flying.len() >= most || self.waiting.len() >= most * AHEAD {
                return Ok(());
            }
            match self.pending.next()? {
                Pending::Sample(sample) => {
                    self.pending.held = self.start(job, sample)?;
                    if self.pending.held.is_some() {
                        return Ok(());
                    }
                }
                Pending::Wait => return Ok(()),
                Pending::End => self.exhausted = true,
            }
        }
    }

    /// Starts a sample, or takes its remembered result. Returns a sample that must wait for others.
    fn start(&mut self, job: &mut RowsJob<'_>, sample: Sample) -> Result<Option<Sample>, OperatorError> {
        let known = job.memo.get(&sample.key).find_map(|output| job.kernel.label(&sample.row, sample.index, output));
        if let Some(output) = known {
            let mut done = Done { cached: true, ..Done::new(&sample, self.next_number, Ok(output)) };
            self.count(job, &mut done)?;
            self.waiting.insert(self.next_number, done);
            self.next_number += 1;
            return Ok(None);
        }
        let draws = self.pending.draw().is_some();
        // A node without limiters makes no calls: the budget does not stop it.
        let session = job.run.context.session();
        if (draws || !job.run.finishes) && session.limiters().next().is_some() && session.budget.refused().is_some() {
            self.exhausted = true;
            if job.run.finishes {
                // The first sample that was not asked says why drawing ends.
                let refused = RowFailure::new(FailureKind::Budget, "the budget is used up");
                self.waiting.insert(self.next_number, Done::new(&sample, self.next_number, Err(refused)));
                self.next_number += 1;
            } else {
                self.state.stopped = true;
            }
            return Ok(None);
        }
        let at_once = job.run.context.concurrency();
        if self.pending.draw().is_some_and(|draw| !draw.may_pay(at_once)) {
            return Ok(Some(sample));
        }
        // Only once a call may follow: if all rows are known, damaged answers are not needed.
        if !std::mem::replace(&mut self.calls_read, true)
            && let Some(calls) = &job.run.calls
        {
            read_calls(calls, &job.run.context)?;
        }
        self.flying.push(launch(job, sample, self.next_number));
        self.next_number += 1;
        Ok(None)
    }

    /// Counts the rows of a result that pass.
    fn count(&mut self, job: &RowsJob<'_>, done: &mut Done) -> Result<(), OperatorError> {
        if let Some(draw) = self.pending.draw() {
            let passing = done.result.as_ref().map_or(Ok(0), |output| job.kernel.counts(output));
            done.counts = draw.known(done.place, *passing.as_ref().unwrap_or(&0));
            passing?;
        }
        Ok(())
    }

    /// Writes the finished rows that are next in order, up to the goal.
    fn write(&mut self, job: &RowsJob<'_>, outputs: &mut Outputs<'_>) -> Result<(), OperatorError> {
        while self.state.failure.is_none()
            && self.pending.draw().is_none_or(|draw| !draw.is_reached())
            && let Some(done) = self.waiting.remove(&self.next_write)
        {
            self.next_write += 1;
            let mut written = self.next_write as u64;
            let is_postponed = done.result.as_ref().is_err_and(|failure| failure.kind.is_postponed());
            if let Some(draw) = self.pending.draw() {
                if is_postponed {
                    // What comes after a row that was not drawn would be paid for without need.
                    self.exhausted = true;
                } else {
                    draw.count(done.counts);
                }
                written = draw.totals().1;
            }
            for (name, value) in done.result.iter().flat_map(|output| job.kernel.figures(output)) {
                *self.sums.entry(name).or_default() += value;
            }
            write(job, done, outputs, &mut self.state)?;
            job.run.context.progress().resumed(self.state.cached_rows);
            job.run.context.progress().set(written, self.total, "rows");
        }
        Ok(())
    }

    /// Records the sums of figures, and where drawing ended.
    fn report_outcome(&mut self, job: &RowsJob<'_>, outputs: &mut Outputs<'_>) {
        for (name, value) in &self.sums {
            outputs.figure(name, *value);
        }
        let mut text = job.kernel.summary(&self.sums);
        if let Some(draw) = self.pending.draw() {
            let (samples, rows) = draw.totals();
            outputs.figure(DRAWN, samples as f64);
            outputs.figure(COUNTED, rows as f64);
            let earlier = if text.is_empty() { text } else { format!("{text}\n") };
            text = format!("{earlier}{}", draw.text(self.state.unasked > 0));
        }
        if !text.is_empty() {
            outputs.summary(&text);
        }
        if self.pending.draw().is_none_or(|draw| !draw.is_reached()) {
            return;
        }
        // Results beyond the goal are remembered and paid for, but not part of the output.
        let mut count = 0_u64;
        for done in std::mem::take(&mut self.waiting).into_values().filter(|done| !done.cached) {
            let usage = done.result.as_ref().map_or_else(|failure| &failure.usage, |output| &output.usage);
            self.state.usage += usage.without(&done.replayed);
            count += 1;
        }
        if count > 0 {
            let line = format!("{count} samples were in flight when enough rows passed: they are remembered");
            job.run.context.progress().log(&line);
        }
    }

    /// Remembers a row that was in flight.
    fn land(&mut self, job: &mut RowsJob<'_>, done: Result<Done, JoinError>) -> Result<(), OperatorError> {
        let Ok(mut done) = done else {
            return Err(OperatorError::engine("a row's task panicked: this is a bug in the operator"));
        };
        let remembered = done.result.as_ref().map_or(Ok(()), |output| job.memo.put(&done.key, output));
        let counted = self.count(job, &mut done);
        // Before any error: the rows after this one are written only once it is there.
        self.waiting.insert(done.number, done);
        remembered?;
        counted?;
        if let Some(fault) = job.kernel.fault() {
            return Err(fault);
        }
        job.run.context.session().budget.check()?;
        job.run.observed.check()?;
        if let Some(calls) = &job.run.calls {
            calls.check()?;
        }
        Ok(())
    }
}

fn launch(job: &RowsJob<'_>, sample: Sample, number: usize) -> JoinHandle<Done> {
    let (kernel, context, since) = (Arc::clone(&job.kernel), job.run.context.clone(), job.since);
    let (observed, sources) = (job.run.observed.clone(), Arc::clone(&job.run.sources));
    let place = sample.call_place(&context);
    let calls = job.run.calls.as_ref().map(|calls| Arc::new(RowCalls::new(Arc::clone(calls), place, since)));
    tokio::spawn(async move {
        let journal = calls.clone().map(|calls| calls as Arc<dyn CallJournal>);
        let (mut result, mut replayed) = sample.run(kernel.as_ref(), &context, journal, &observed, since).await;
        if let Some(calls) = calls {
            replayed += calls.replayed();
        }
        // The row may have read a source after its change: it is neither done nor failed, and is not remembered.
        if let Some(what) = sources.changed() {
            result = Err(RowFailure::new(FailureKind::Cancelled, OperatorError::changed(&what).message));
        }
        Done { replayed, ..Done::new(&sample, number, result) }
    })
}

fn row_id(row: &RecordBatch, number: usize) -> String {
    match text_column(row, "id") {
        Ok(ids) if ids.is_valid(0) => ids.value(0).to_owned(),
        _ => format!("row {number}"),
    }
}

fn write(job: &RowsJob<'_>, done: Done, outputs: &mut Outputs<'_>, state: &mut RowsRun) -> Result<(), OperatorError> {
    let failure = match done.result {
        Ok(output) => {
            if done.cached {
                state.cached_rows += 1;
            } else {
                state.usage += output.usage.without(&done.replayed);
            }
            for (port, batch) in &output.batches {
                outputs.write(port, batch)?;
            }
            return Ok(());
        }
        Err(failure) => failure,
    };
    state.usage += failure.usage.without(&done.replayed);
    if failure.kind == FailureKind::Budget && job.run.finishes {
        state.unasked += 1;
        return outputs.reject(failure.reject(&done.row_id));
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
            let (row_id, kind, attempts) = (&done.row_id, failure.kind.name(), failure.attempts);
            let message = format!("row `{row_id}` failed ({kind}, attempts: {attempts}): {}", failure.message);
            let error = OperatorError::data(message).with_help("`on_error: dead_letter` keeps the other rows");
            state.failure.get_or_insert(error);
            Ok(())
        }
        OnError::DeadLetter => outputs.reject(failure.reject(&done.row_id)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use searchmill_schemas::Question;

    use super::*;
    use crate::fingerprint::hash_bytes;
    use crate::operator::testing::rows_input;
    use crate::operator::{Context, ContextParts, InputArtifact, OutputSink};
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

    fn questions(rows: u32) -> RowsInput {
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
        input
    }

    /// Runs the rows of a kernel on a store, `concurrency` of them in flight.
    fn drive(
        store: &Store,
        rows: u32,
        concurrency: usize,
        kernel: Arc<dyn AsyncMapKernel>,
        on_error: OnError,
        goal: Option<Goal>,
        disk: &mut Disk,
    ) -> Result<RowsRun, OperatorError> {
        let input = questions(rows);
        let base = hash_bytes(b"base");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let bare = ContextParts::bare(store.root(), runtime.handle(), reqwest::Client::new());
        let context = Context::new(ContextParts { concurrency, ..bare });
        let run = KernelRun { on_error, ..KernelRun::new(context, store, Arc::default()) };
        let keys = RowKeys::new(base, kernel.reads());
        let memo = Memo::open(store, &base).unwrap();
        let job = RowsJob { run: &run, kernel, rows: &input, keys, goal, memo, since: 0 };
        runtime.block_on(run_rows(job, disk))
    }

    /// Runs rows on a store with four in flight; returns the outcome and the number of rows that ended.
    fn run(store: &Store, rows: u32, disk: &mut Disk) -> (Result<RowsRun, OperatorError>, usize) {
        let ended = Arc::new(AtomicUsize::new(0));
        let kernel = Arc::new(Slow(Arc::clone(&ended)));
        let outcome = drive(store, rows, 4, kernel, OnError::DeadLetter, None, disk);
        (outcome, ended.load(Ordering::SeqCst))
    }

    /// More than may wait with two in flight.
    const ROWS: u32 = 512;

    /// The first row waits until so many others have ended; then it fails, or counts.
    struct Late {
        others: usize,
        fails: bool,
        ended: AtomicUsize,
    }

    impl Late {
        fn after(others: usize, fails: bool) -> Arc<Self> {
            Arc::new(Self { others, fails, ended: AtomicUsize::new(0) })
        }
    }

    impl AsyncMapKernel for Late {
        fn reads(&self) -> Vec<String> {
            vec!["question".to_owned()]
        }

        fn counts(&self, _output: &RowOutput) -> Result<u64, OperatorError> {
            Ok(1)
        }

        fn run<'a>(
            &'a self,
            row: &'a RecordBatch,
            _sample: u32,
            _context: &'a Context,
        ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
            async move {
                if row_id(row, 0) == "q0" {
                    while self.ended.load(Ordering::SeqCst) < self.others {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    // The rows that ended are waiting by then.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    if self.fails {
                        return Err(RowFailure::new(FailureKind::ServerError, "no more attempts"));
                    }
                } else {
                    self.ended.fetch_add(1, Ordering::SeqCst);
                }
                let batches = vec![("questions".to_owned(), row.clone())];
                Ok(RowOutput { batches, usage: Usage::default() })
            }
            .boxed()
        }
    }

    /// Fails if the work does not end: a loop that never waits cannot be timed out on its own runtime.
    fn soon<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(sender.send(work())));
        receiver.recv_timeout(Duration::from_mins(1)).expect("the rows end")
    }

    #[test]
    fn a_row_that_fails_after_many_later_ones_have_finished_ends_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let late = Late::after(2 * AHEAD, true);
        let outcome = soon(move || drive(&store, ROWS, 2, late, OnError::Fail, None, &mut Disk { full: false }));
        assert!(outcome.is_err_and(|error| error.message.contains("no more attempts")));
    }

    #[test]
    fn a_sample_that_reaches_the_goal_before_many_remembered_ones_ends_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let all = drive(&store, ROWS, 2, Late::after(0, true), OnError::DeadLetter, None, &mut Disk { full: false });
        assert!(all.is_ok(), "all rows but the first are remembered");
        let goal = Goal { rows: 1, per_row: None, at_most: None };
        let outcome = soon(move || {
            drive(&store, ROWS, 2, Late::after(0, false), OnError::DeadLetter, Some(goal), &mut Disk { full: false })
        });
        assert_eq!(outcome.unwrap().cached_rows, 0, "the first sample is enough");
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
