//! Runs one operator in memory, for its author's tests: real kernel, real files, no store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::datasource::MemTable;
use futures::StreamExt;
use searchmill_schemas::{Record, RecordKind, Reject, from_batch, to_batch};
use serde_json::Value;

use super::context::{CheckpointStore, Context, ContextParts, Nothing, Pieces, ProgressSink, RetryPolicy};
use super::functions::storable;
use super::goal::{COUNTED, DRAWN, Draw, Goal, Next};
use super::kernel::{AsyncMapKernel, Kernel, MapOutput, QueryInputs, QueryKernel, RowOutput};
use super::listing::files_of;
use super::port::TreeKind;
use super::registry::{BoundOperator, OperatorEntry};
use super::rows::{InputArtifact, Inputs, OutputSink, RowsInput, TreeInput};
use super::sources::{Source, SourceFiles};
use super::tables::query_session;
use crate::endpoint::{RowFailure, Usage};
use crate::error::OperatorError;

/// Files behind sources, without comparison.
struct Listed(BTreeMap<String, Vec<PathBuf>>);

impl SourceFiles for Listed {
    fn files(&self, written: &str) -> Option<Vec<PathBuf>> {
        self.0.get(written).cloned()
    }

    fn covers(&self, path: &Path) -> Option<bool> {
        let mut files = self.0.values().flatten();
        Some(files.any(|file| file == path || file.canonicalize().ok() == path.canonicalize().ok()))
    }
}

/// The output of an operator.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Rows by output port, `rejects` included.
    pub rows: BTreeMap<String, Vec<RecordBatch>>,
    /// Folders by output port; they exist as long as the harness.
    pub trees: BTreeMap<String, PathBuf>,
    /// Recorded figures.
    pub figures: BTreeMap<String, f64>,
    /// Text for readers.
    pub summary: String,
    /// Usage of external rows.
    pub usage: Usage,
}

impl Outcome {
    /// Returns the rows of a port as structs.
    ///
    /// # Panics
    /// Panics if the rows are not of that kind.
    pub fn read<R: Record>(&self, port: &str) -> Vec<R> {
        let batches = self.rows.get(port).map_or(&[][..], Vec::as_slice);
        batches.iter().flat_map(|batch| from_batch(batch).expect("rows of that kind")).collect()
    }

    /// Returns all rows of a port as one batch.
    ///
    /// # Panics
    /// Panics if the port has no rows.
    pub fn batch(&self, port: &str) -> RecordBatch {
        let batches = self.rows.get(port).expect("rows at that port");
        concat_batches(&batches[0].schema(), batches).expect("one schema a port")
    }

    /// Returns the rejected rows.
    pub fn rejects(&self) -> Vec<Reject> {
        self.read("rejects")
    }
}

/// Runs operators in a temporary folder.
pub struct Harness {
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    /// Made once: it reads the certificates of the system.
    http: reqwest::Client,
    /// Seed of the operators.
    pub seed: u64,
    /// Rows per batch of a `Map` kernel's input.
    pub batch_rows: usize,
    /// Rows in flight of external kernels.
    pub concurrency: usize,
    /// Retry policy of external calls.
    pub retry: RetryPolicy,
    /// GPUs that operators may use.
    pub gpus: u32,
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    /// Base of relative paths.
    pub directory: PathBuf,
    /// Secrets by name.
    pub secrets: BTreeMap<String, String>,
    /// Known pieces of work (default: none, so that everything is computed).
    pub pieces: Arc<dyn Pieces>,
    logged: Arc<Listener>,
}

impl Default for Harness {
    fn default() -> Self {
        Self::new()
    }
}

impl Harness {
    /// Creates a harness with a new folder; relative paths start at the current directory.
    ///
    /// # Panics
    /// Panics if no temporary folder, runtime or HTTP client can be created.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            runtime: tokio::runtime::Runtime::new().expect("a runtime"),
            http: super::http_client().expect("an HTTP client"),
            seed: 0,
            batch_rows: 8192,
            concurrency: 8,
            // Short, so that a test of retries does not wait for seconds.
            retry: RetryPolicy { backoff: std::time::Duration::from_millis(10), ..RetryPolicy::default() },
            gpus: 0,
            memory: None,
            directory: std::env::current_dir().expect("a working directory"),
            secrets: BTreeMap::new(),
            pieces: Arc::new(Nothing),
            logged: Arc::default(),
        }
    }

    /// Returns the lines logged so far.
    pub fn logged(&self) -> Vec<String> {
        self.logged.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the harness's folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a context like the driver's.
    pub fn context(&self) -> Context {
        self.context_with(Arc::new(Nothing))
    }

    /// Returns a context with source files.
    ///
    /// # Panics
    /// Panics if the scratch folder cannot be created.
    pub fn context_with(&self, sources: Arc<dyn SourceFiles>) -> Context {
        let secrets = self.secrets.clone();
        let scratch = self.path().join("scratch");
        std::fs::create_dir_all(&scratch).expect("a scratch folder");
        Context::new(ContextParts {
            seed: self.seed,
            scratch,
            threads: 2,
            memory: self.memory,
            concurrency: self.concurrency,
            gpus: self.gpus,
            retry: self.retry,
            secrets: Arc::new(move |name| secrets.get(name).cloned()),
            progress: Arc::clone(&self.logged) as Arc<dyn ProgressSink>,
            checkpoint: Arc::new(SavedState(self.folder.path().join("checkpoint"))),
            pieces: Arc::clone(&self.pieces),
            sources,
            ..ContextParts::bare(&self.directory, self.runtime.handle(), self.http.clone())
        })
    }

    /// Returns the files behind sources, as a key would see them. Missing files are omitted.
    pub fn seen(&self, sources: &[Source]) -> Arc<dyn SourceFiles> {
        let mut listed = BTreeMap::new();
        for source in sources {
            if let Ok(listing) = files_of(source, &self.directory, &|| false) {
                listed.insert(source.written(), listing.files.into_iter().map(|(_, path)| path).collect());
            }
        }
        Arc::new(Listed(listed))
    }

    /// Binds and runs an operator.
    ///
    /// # Errors
    /// Fails with the operator's error; invalid params are reported as pipeline errors with their path.
    pub fn run(&self, entry: &OperatorEntry, params: Value, inputs: &Inputs) -> Result<Outcome, OperatorError> {
        let bound = (entry.bind)(params).map_err(|i| OperatorError::pipeline(format!("{}: {}", i.path, i.message)))?;
        if let Some(issue) = bound.declaration.issues.first() {
            return Err(OperatorError::pipeline(format!("{}: {}", issue.path, issue.message)));
        }
        // Before sources are listed, as a run does before it computes the key.
        bound.declaration.fetch(&self.context())?;
        let mut sink = MemorySink { folder: self.unique_folder(), outcome: Outcome::default() };
        self.run_kernel(&bound, inputs, &mut sink)?;
        // As the store does after a result is recorded.
        if let Err(error) = std::fs::remove_file(self.folder.path().join("checkpoint"))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error.into());
        }
        bound.declaration.deliver(&sink.outcome.trees, &self.context())?;
        Ok(sink.outcome)
    }

    fn unique_folder(&self) -> PathBuf {
        // Folders of earlier runs stay: their outputs may be inputs of later ones.
        tempfile::Builder::new().prefix("run").tempdir_in(self.folder.path()).expect("a folder").keep()
    }

    fn run_kernel(&self, bound: &BoundOperator, inputs: &Inputs, sink: &mut MemorySink) -> Result<(), OperatorError> {
        let context = self.context_with(self.seen(&bound.declaration.sources(&self.directory)));
        let main = bound.declaration.ports.inputs.first().map(|port| port.name.clone()).unwrap_or_default();
        match bound.open(inputs, &context)? {
            Kernel::Map(kernel) => {
                for batch in inputs.rows(&main)?.batches() {
                    let batch = batch?;
                    for start in (0..batch.num_rows()).step_by(self.batch_rows) {
                        let mut output = MapOutput::default();
                        kernel.map(&batch.slice(start, self.batch_rows.min(batch.num_rows() - start)), &mut output)?;
                        output.write(sink)?;
                    }
                }
                Ok(())
            }
            Kernel::AsyncMap(kernel) => {
                let goal = bound.declaration.goal();
                self.runtime.block_on(self.run_rows(kernel.as_ref(), goal, inputs.rows(&main)?, &context, sink))
            }
            Kernel::Query(kernel) => self.runtime.block_on(run_query(kernel.as_ref(), inputs, sink)),
            Kernel::Blocking(kernel) => kernel.run(inputs, sink, &context),
        }
    }

    async fn run_rows(
        &self,
        kernel: &dyn AsyncMapKernel,
        goal: Option<Goal>,
        rows: &RowsInput,
        context: &Context,
        sink: &mut MemorySink,
    ) -> Result<(), OperatorError> {
        // One row per call, as a run makes them.
        let mut all = Vec::new();
        for batch in rows.batches() {
            let batch = batch?;
            all.extend((0..batch.num_rows()).map(|row| batch.slice(row, 1)));
        }
        let mut sums = Sums::default();
        if let Some(goal) = goal {
            return self.draw_rows(kernel, all, goal, context, sink).await;
        }
        let tasks = all.iter().flat_map(|row| (0..kernel.samples()).map(move |sample| (row.clone(), sample)));
        let mut done = futures::stream::iter(tasks)
            .map(|(row, sample)| async move { (kernel.run(&row, sample, context).await, row) })
            // In the order of the input, whichever row ends first, as in a run.
            .buffered(self.concurrency);
        while let Some((result, row)) = done.next().await {
            sums.add(kernel, &result);
            write_row(&row, result, sink)?;
        }
        let text = sums.tell(kernel, sink);
        sink.summary(&text);
        Ok(())
    }

    /// Draws samples up to a goal, one after the other.
    async fn draw_rows(
        &self,
        kernel: &dyn AsyncMapKernel,
        rows: Vec<RecordBatch>,
        goal: Goal,
        context: &Context,
        sink: &mut MemorySink,
    ) -> Result<(), OperatorError> {
        let (mut draw, mut sums) = (Draw::new(goal), Sums::default());
        let samples = (0..kernel.samples()).flat_map(|sample| rows.iter().enumerate().map(move |row| (sample, row)));
        for (sample, (place, row)) in samples {
            if draw.is_reached() || !draw.may_admit() {
                break;
            }
            if draw.next(place) == Next::Drawn {
                draw.admit(place);
                let result = kernel.run(row, sample, context).await;
                let counts = draw.known(place, result.as_ref().map_or(Ok(0), |output| kernel.counts(output))?);
                draw.count(counts);
                sums.add(kernel, &result);
                write_row(row, result, sink)?;
            }
        }
        let text = sums.tell(kernel, sink);
        let (samples, rows) = draw.totals();
        sink.figure(DRAWN, samples as f64);
        sink.figure(COUNTED, rows as f64);
        let earlier = if text.is_empty() { text } else { format!("{text}\n") };
        sink.summary(&format!("{earlier}{}", draw.text(false)));
        Ok(())
    }
}

/// Sums of the rows' figures.
#[derive(Default)]
struct Sums(BTreeMap<&'static str, f64>);

impl Sums {
    fn add(&mut self, kernel: &dyn AsyncMapKernel, result: &Result<RowOutput, RowFailure>) {
        for (name, value) in result.iter().flat_map(|output| kernel.figures(output)) {
            *self.0.entry(name).or_default() += value;
        }
    }

    /// Records the figures, and returns the text about them.
    fn tell(&self, kernel: &dyn AsyncMapKernel, sink: &mut MemorySink) -> String {
        for (name, value) in &self.0 {
            sink.figure(name, *value);
        }
        kernel.summary(&self.0)
    }
}

fn write_row(
    row: &RecordBatch,
    result: Result<RowOutput, RowFailure>,
    sink: &mut MemorySink,
) -> Result<(), OperatorError> {
    match result {
        Ok(output) => {
            sink.outcome.usage += output.usage;
            output.batches.iter().try_for_each(|(port, batch)| sink.write(port, batch))
        }
        Err(failure) => {
            let id = searchmill_schemas::text_column(row, "id")?.value(0).to_owned();
            sink.write("rejects", &to_batch(&[failure.reject(id)])?)
        }
    }
}

async fn run_query(kernel: &dyn QueryKernel, inputs: &Inputs, sink: &mut MemorySink) -> Result<(), OperatorError> {
    let session = query_session()?;
    let mut tables = Vec::new();
    for (port, bound) in inputs.iter() {
        if let Some(InputArtifact::Rows(rows)) = bound.first() {
            let batches = rows.batches().collect::<Result<Vec<_>, _>>()?;
            session.register_table(port, Arc::new(MemTable::try_new(Arc::clone(&rows.schema), vec![batches])?))?;
            tables.push(port.to_owned());
        }
    }
    for output in kernel.plan(&session, &QueryInputs { tables }).await? {
        for batch in storable(output.frame)?.collect().await? {
            sink.write(&output.port, &batch)?;
        }
    }
    Ok(())
}

/// Creates an input from rows.
///
/// # Panics
/// Panics if the rows do not fit their kind.
pub fn rows_input<R: Record>(rows: &[R]) -> InputArtifact {
    let batch = to_batch(rows).expect("rows fit their kind");
    batch_input(R::KIND, batch)
}

/// Creates an input from a batch.
pub fn batch_input(kind: RecordKind, batch: RecordBatch) -> InputArtifact {
    InputArtifact::Rows(RowsInput::from_batches(kind, batch.schema(), vec![batch]))
}

/// Creates an input from a folder.
pub fn tree_input(kind: TreeKind, path: &Path) -> InputArtifact {
    InputArtifact::Tree(TreeInput { kind, path: path.to_owned(), digest: String::new() })
}

/// Creates inputs by port.
pub fn inputs<'p>(bound: impl IntoIterator<Item = (&'p str, InputArtifact)>) -> Inputs {
    let mut inputs = Inputs::new();
    for (port, artifact) in bound {
        inputs.bind(port, artifact);
    }
    inputs
}

/// Saves a kernel's state in the harness's folder, for the next run in the same harness.
struct SavedState(PathBuf);

impl CheckpointStore for SavedState {
    fn load(&self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(std::fs::read(&self.0).ok())
    }

    fn save(&self, state: &[u8]) -> Result<(), OperatorError> {
        Ok(std::fs::write(&self.0, state)?)
    }
}

struct MemorySink {
    folder: PathBuf,
    outcome: Outcome,
}

impl OutputSink for MemorySink {
    fn write(&mut self, port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.outcome.rows.entry(port.to_owned()).or_default().push(batch.clone());
        Ok(())
    }

    fn tree(&mut self, port: &str) -> Result<PathBuf, OperatorError> {
        let path = self.folder.join(port);
        std::fs::create_dir_all(&path)?;
        self.outcome.trees.insert(port.to_owned(), path.clone());
        Ok(path)
    }

    fn figure(&mut self, name: &str, value: f64) {
        self.outcome.figures.insert(name.to_owned(), value);
    }

    fn summary(&mut self, text: &str) {
        self.outcome.summary.push_str(text);
    }
}

/// Records log lines, and cancels the run at a given line.
#[derive(Default)]
pub struct Listener {
    /// The lines logged.
    pub lines: Mutex<Vec<String>>,
    cancels: &'static str,
    cancelled: Arc<AtomicBool>,
}

impl ProgressSink for Listener {
    fn log(&self, line: &str) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        self.cancelled.fetch_or(line == self.cancels, Ordering::Relaxed);
    }
}

/// Returns a context in that folder, and the listener that receives its log.
pub fn listened(
    folder: &Path,
    seed: u64,
    cancels: &'static str,
    runtime: &tokio::runtime::Runtime,
) -> (Context, Arc<Listener>) {
    let cancelled = Arc::<AtomicBool>::default();
    let listener = Arc::new(Listener { lines: Mutex::default(), cancels, cancelled: Arc::clone(&cancelled) });
    let bare = ContextParts::bare(folder, runtime.handle(), reqwest::Client::new());
    let progress = Arc::clone(&listener) as Arc<dyn ProgressSink>;
    let context = Context::new(ContextParts { seed, cancelled, scratch: folder.join("listened"), progress, ..bare });
    (context, listener)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use searchmill_schemas::Question;

    use super::*;

    /// Each row counts, and is worth two.
    struct Two;

    impl AsyncMapKernel for Two {
        fn reads(&self) -> Vec<String> {
            vec!["question".to_owned()]
        }

        fn figures(&self, _output: &RowOutput) -> Vec<(&'static str, f64)> {
            vec![("worth", 2.0)]
        }

        fn summary(&self, sums: &BTreeMap<&'static str, f64>) -> String {
            format!("worth {}", sums.get("worth").copied().unwrap_or_default())
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
            let batches = vec![("questions".to_owned(), row.clone())];
            async move { Ok(RowOutput { batches, usage: Usage::default() }) }.boxed()
        }
    }

    #[test]
    fn figures_and_summary_are_those_of_a_run_with_and_without_a_goal() {
        let harness = Harness::new();
        let question = |id: &str| Question {
            id: id.to_owned(),
            question: id.to_owned(),
            golden_answers: Vec::new(),
            question_type: None,
            evidence: Vec::new(),
            metadata: None,
        };
        let InputArtifact::Rows(rows) = rows_input(&["a", "b", "c"].map(question)) else { panic!("a table") };
        let told = |goal: Option<Goal>| {
            let mut sink = MemorySink { folder: harness.unique_folder(), outcome: Outcome::default() };
            let context = harness.context();
            let ran = harness.run_rows(&Two, goal, &rows, &context, &mut sink);
            harness.runtime.block_on(ran).unwrap();
            (sink.outcome.figures, sink.outcome.summary)
        };
        let figures = |known: &[(&str, f64)]| known.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        assert_eq!(told(None), (figures(&[("worth", 6.0)]), "worth 6".to_owned()));
        let goal = Goal { rows: 2, per_row: None, at_most: None };
        let known = [("worth", 4.0), (DRAWN, 2.0), (COUNTED, 2.0)];
        assert_eq!(told(Some(goal)), (figures(&known), "worth 4\n`until`: 2 rows pass after 2 samples".to_owned()));
    }
}
