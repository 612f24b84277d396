//! Processes that call the same function, started when they are needed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{Context, OperatorError};
use serde_json::json;

use super::answer::{Called, CalledBatch, Failure, JsonRows, Why};
use super::function::PythonFunction;
use super::known::Known;
use super::worker::Worker;

/// The script of a process.
const SCRIPT: &str = concat!(
    include_str!("project.py"),
    include_str!("values.py"),
    include_str!("function.py"),
    include_str!("worker.py"),
);
/// How often a waiting call checks for cancellation.
const WATCH: Duration = Duration::from_millis(50);
/// Lost processes in a row after which the node fails.
const MOST_LOST: u32 = 8;

/// A number of processes that call the same function.
pub struct Pool {
    function: PythonFunction,
    columns: Vec<String>,
    input: Vec<String>,
    context: Context,
    known: OnceLock<Arc<Known>>,
    width: Width,
    state: Mutex<State>,
    freed: Condvar,
    /// Calls in a row that lost their process.
    lost: AtomicU32,
    /// Columns of which the log says that NaN and infinity are null.
    warned: Mutex<BTreeSet<String>>,
}

/// Number of processes (at most).
#[derive(Clone, Copy, Debug)]
pub struct Width {
    /// Of a function.
    pub function: usize,
    /// Of a class: its objects may hold a model.
    pub class: usize,
}

#[derive(Default)]
struct State {
    idle: Vec<Worker>,
    /// Processes that run or are being started.
    live: usize,
    /// Processes (at most), once one has said what it calls.
    most: Option<usize>,
}

impl Pool {
    /// Creates a pool; calls start its processes. Rows are the arguments of calls, with these names.
    #[must_use]
    pub fn new(function: PythonFunction, columns: Vec<String>, width: Width, context: &Context) -> Self {
        let (context, known, input) = (context.clone(), OnceLock::new(), Vec::new());
        let (state, freed, lost, warned) = (Mutex::default(), Condvar::new(), AtomicU32::new(0), Mutex::default());
        Self { function, columns, input, context, known, width, state, freed, lost, warned }
    }

    /// Creates a pool whose rows are those of a table with these columns, and starts its first process, which says what
    /// the function takes. Returns the columns that rows must have.
    ///
    /// # Errors
    /// Fails if the function cannot be imported.
    pub fn of_table(
        function: PythonFunction,
        table: Vec<String>,
        width: Width,
        context: &Context,
    ) -> Result<(Self, Vec<String>), OperatorError> {
        let mut pool = Self::new(function, table.clone(), width, context);
        pool.input = table;
        let worker = pool.take()?;
        if let Some(takes) = &worker.takes {
            // A class takes its arguments before the first call.
            let arguments = &pool.function.arguments;
            pool.columns.retain(|name| takes.contains(name) && (worker.is_class || !arguments.contains_key(name)));
        }
        pool.release(worker, true);
        let columns = pool.columns.clone();
        Ok((pool, columns))
    }

    /// Calls the function with every row, and waits for all answers. A row that ends its process, or takes too long, is a
    /// failed call; other rows are called again in another process if their answers were lost with it.
    ///
    /// # Errors
    /// Fails if the run was cancelled, a process was killed or cannot be started, or many calls in a row end theirs.
    pub fn call(&self, rows: &JsonRows) -> Result<Vec<Called>, OperatorError> {
        for name in &rows.not_finite {
            if self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone()) {
                let lacking = "JSON lacks them; with `batch`, the function gets them";
                let log = format!("warning: NaN and infinity in the column `{name}` are null: {lacking}");
                self.context.progress().log(&log);
            }
        }
        let mut called = Vec::with_capacity(rows.len());
        let mut alone = rows.len() == 1;
        while called.len() < rows.len() {
            let before = called.len();
            let mut worker = self.take()?;
            let settled = worker.settle(&self.columns, &self.input);
            let lost = settled.and_then(|()| worker.call(rows, alone, &mut called));
            self.release(worker, matches!(lost, Ok(None)));
            let lost = lost?;
            if called.len() > before {
                self.lost.store(0, Ordering::Relaxed);
            }
            match lost {
                Some(failure) if alone => called.push(Called::Failed(self.counted(failure)?)),
                // Which row it was is known only if each is answered by itself.
                Some(_) => alone = true,
                None => {}
            }
        }
        Ok(called)
    }

    /// Calls the function with a batch.
    ///
    /// # Errors
    /// Fails like [`Pool::call`].
    pub fn call_batch(&self, batch: &RecordBatch) -> Result<CalledBatch, OperatorError> {
        let mut worker = self.take()?;
        let settled = worker.settle(&self.columns, &self.input);
        let called = settled.and_then(|()| worker.call_batch(batch));
        let lost = matches!(&called, Ok(CalledBatch::Failed(Failure { why: Why::Late | Why::Ended, .. })));
        // After an exception, the process can be called again.
        self.release(worker, called.is_ok() && !lost);
        match called? {
            CalledBatch::Failed(failure) if lost => Ok(CalledBatch::Failed(self.counted(failure)?)),
            done => {
                self.lost.store(0, Ordering::Relaxed);
                Ok(done)
            }
        }
    }

    /// Counts a call that lost its process.
    fn counted(&self, failure: Failure) -> Result<Failure, OperatorError> {
        if self.lost.fetch_add(1, Ordering::Relaxed) + 1 < MOST_LOST {
            return Ok(failure);
        }
        let name = self.function.written();
        let mut message = format!("{MOST_LOST} calls of `{name}` in a row failed, the last one: {}", failure.message);
        if let Some(detail) = failure.detail {
            message += &format!(":\n{detail}");
        }
        let help = if failure.why == Why::Late { "raise `timeout_seconds`" } else { "its output is in the node's log" };
        Err(OperatorError::pipeline(message).with_help(help))
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an idle process, or a new one, or waits for one.
    fn take(&self) -> Result<Worker, OperatorError> {
        let mut state = self.locked();
        loop {
            self.context.check_cancelled()?;
            if let Some(worker) = state.idle.pop() {
                return Ok(worker);
            }
            let Width { function, class } = self.width;
            if state.live < state.most.unwrap_or(function.min(class)).max(1) {
                state.live += 1;
                break;
            }
            state = self.freed.wait_timeout(state, WATCH).unwrap_or_else(PoisonError::into_inner).0;
        }
        // Without the lock: starting a process takes long, and others can go on meanwhile.
        drop(state);
        let started = self.known().and_then(|known| self.started(&known));
        let mut state = self.locked();
        if let Ok(worker) = &started {
            state.most = Some(if worker.is_class { self.width.class } else { self.width.function });
        } else {
            state.live -= 1;
        }
        // Others may have waited for either.
        self.freed.notify_all();
        drop(state);
        started
    }

    /// Checks the file and its imports, before a call starts a process.
    ///
    /// # Errors
    /// Fails if Python cannot be asked, or the file is no Python.
    pub fn check(&self) -> Result<(), OperatorError> {
        self.known().map(drop)
    }

    /// Starts the first process, which imports the function.
    ///
    /// # Errors
    /// Fails if the function cannot be imported.
    pub fn start(&self) -> Result<(), OperatorError> {
        let worker = self.take()?;
        self.release(worker, true);
        Ok(())
    }

    /// Starts a process that has imported the function.
    fn started(&self, known: &Arc<Known>) -> Result<Worker, OperatorError> {
        let (function, context) = (&self.function, &self.context);
        let mut words = known.words.clone();
        words.extend(["-c".to_owned(), SCRIPT.to_owned()]);
        let given = BTreeMap::from([
            // The order of sets is the same in every process.
            ("PYTHONHASHSEED".to_owned(), "0".to_owned()),
            ("SEARCHMILL_SEED".to_owned(), context.seed().to_string()),
        ]);
        let (allowed, writes) = (&function.environment, &function.writes);
        let program = crate::program::Program { command: &words, given, allowed, writes, seconds: function.seconds };
        let running = program.start(Stdio::piped(), context)?;
        // Where the system does not report opened files, the process reports its own.
        let listens = !running.is_observed();
        let mut worker = Worker::of(running, function, context, known)?;
        worker.greet(&json!({
            "file": known.file, "module": known.package.as_ref().map(|package| &package.module), "function": known.function,
            "directory": known.directory, "batch": function.batch, "listens": listens,
        }))?;
        Ok(worker)
    }

    fn known(&self) -> Result<Arc<Known>, OperatorError> {
        if let Some(known) = self.known.get() {
            return Ok(Arc::clone(known));
        }
        let known = Arc::new(Known::of(&self.function, &self.context)?);
        Ok(Arc::clone(self.known.get_or_init(|| known)))
    }

    /// Takes a process back, or ends it if it cannot be used again.
    fn release(&self, worker: Worker, usable: bool) {
        let mut state = self.locked();
        if usable {
            state.idle.push(worker);
        } else {
            state.live -= 1;
            // Without the lock: the end of the process is awaited.
            drop(state);
            drop(worker);
        }
        self.freed.notify_one();
    }
}

/// Lets all processes end at the same time.
impl Drop for Pool {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.idle.iter_mut().for_each(Worker::close);
        state.idle.clear();
    }
}
