//! One Python process that answers calls, and its supervision.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use searchmill_engine::Tail;
use searchmill_engine::operator::{Blame, Context, OperatorError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{Called, CalledBatch, Failure, JsonRows, Why, read_batches, read_failure, read_row, write_batch};
use super::function::{PythonFunction, written};
use super::known::Known;
use super::wire::{Frame, feed, framed, read_frames};
use crate::program::{Passed, Running, repeated, succeeded};

/// How often cancellation, the time limit and the process are checked.
const WATCH: Duration = Duration::from_millis(50);
/// Time that a process has to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// Shortest timeout of an import in seconds, if calls have one, and the timeout if they have none.
const IMPORT: (u64, u64) = if cfg!(test) { (2, 2) } else { (120, 600) };
/// Shortest timeout of the creation of an object in seconds, if calls have one: it may load a model.
const LEAST_SETUP: u64 = 600;

/// A Python process that calls one function. Dropping it ends the process with all its descendants.
pub(super) struct Worker {
    running: Option<Running>,
    requests: Option<Sender<Vec<u8>>>,
    frames: Receiver<Frame>,
    tail: Arc<Tail>,
    /// Disconnected at the end of the process's stderr.
    listened: Receiver<()>,
    context: Context,
    name: String,
    seconds: u64,
    known: Arc<Known>,
    arguments: Map<String, Value>,
    passed: Passed,
    /// Columns that the function takes as it was loaded; `None` for all.
    pub(super) takes: Option<Vec<String>>,
    pub(super) is_class: bool,
    settled: bool,
}

#[derive(Deserialize)]
struct Ready {
    version: String,
    takes: Option<Vec<String>>,
    is_class: bool,
    #[serde(flatten)]
    loaded: Loaded,
}

/// What the process loaded and opened since its last report.
#[derive(Deserialize)]
struct Loaded {
    modules: Vec<PathBuf>,
    /// Files with the flags of `open`, where the system does not tell them.
    opened: Vec<(String, i32)>,
}

#[derive(Deserialize)]
struct NotReady {
    message: String,
    help: String,
    traceback: String,
}

impl Worker {
    pub(super) fn of(
        mut running: Running,
        function: &PythonFunction,
        context: &Context,
        known: &Arc<Known>,
    ) -> Result<Self, OperatorError> {
        let process = &mut running.process;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(OperatorError::engine("the program was started without pipes"));
        };
        let (requests, written) = channel();
        let (sender, frames) = sync_channel(4);
        let (listening, listened) = channel::<()>();
        let tail = Arc::new(Tail::default());
        let (log, heard) = (context.clone(), Arc::clone(&tail));
        // None of these is awaited: a descendant that left the process group may hold the pipes open.
        thread::spawn(move || feed(stdin, &written));
        thread::spawn(move || read_frames(stdout, |frame| sender.send(frame).is_ok()));
        thread::spawn(move || {
            heard.listen(stderr, |line| log.progress().log(line));
            drop(listening);
        });
        Ok(Self {
            running: Some(running),
            requests: Some(requests),
            frames,
            tail,
            listened,
            context: context.clone(),
            name: function.written(),
            seconds: function.seconds,
            known: Arc::clone(known),
            arguments: function.arguments.clone(),
            passed: Passed::of(&function.environment, context),
            takes: None,
            is_class: false,
            settled: false,
        })
    }

    /// Calls the function with the rows from `called.len()` on, and appends the answers. With `alone`, every answer is
    /// sent at once. Returns why the process was lost with the next row, if it was; the worker cannot be used then.
    ///
    /// # Errors
    /// Fails if the run was cancelled, the process was killed, or it loaded a module that is no source.
    pub(super) fn call(
        &mut self,
        rows: &JsonRows,
        alone: bool,
        called: &mut Vec<Called>,
    ) -> Result<Option<Failure>, OperatorError> {
        self.send(if alone { b'S' } else { b'R' }, &rows.array(called.len()));
        loop {
            let frame = match self.next(self.seconds)? {
                Ok(frame) => frame,
                Err(silence) => return self.lost(silence).map(Some),
            };
            match frame.kind {
                b'A' => called.extend(frame.payload.split(|byte| *byte == b'\n').map(|line| self.read(line))),
                // Last: a module may be imported within a call.
                b'E' if called.len() == rows.len() => return self.check_modules(&frame.payload).map(|()| None),
                _ => return Err(self.garbled()),
            }
        }
    }

    /// Calls the function with a batch. The worker cannot be used again after [`Why::Late`] or [`Why::Ended`].
    ///
    /// # Errors
    /// Fails like [`Worker::call`].
    pub(super) fn call_batch(&mut self, batch: &RecordBatch) -> Result<CalledBatch, OperatorError> {
        self.send(b'B', &write_batch(batch)?);
        let mut answer = None;
        loop {
            let frame = match self.next(self.seconds)? {
                Ok(frame) => frame,
                Err(silence) => return self.lost(silence).map(CalledBatch::Failed),
            };
            match (frame.kind, answer.take()) {
                (b'B', None) => {
                    let read = read_batches(&frame.payload);
                    if let CalledBatch::Rows(batches) = &read {
                        batches.iter().try_for_each(|batch| self.passed.check(batch))?;
                    }
                    answer = Some(read);
                }
                (b'X', None) => {
                    let failure = read_failure(&frame.payload).map_err(|_| self.garbled())?;
                    answer = Some(CalledBatch::Failed(failure));
                }
                (b'E', Some(answer)) => return self.check_modules(&frame.payload).map(|()| answer),
                _ => return Err(self.garbled()),
            }
        }
    }

    /// Names the function, and waits until it is imported.
    pub(super) fn greet(&mut self, hello: &Value) -> Result<(), OperatorError> {
        self.send(b'H', hello.to_string().as_bytes());
        let limit = if self.seconds == 0 { IMPORT.1 } else { self.seconds.max(IMPORT.0) };
        let ready = self.ready(limit, "is still being imported")?;
        // The version is part of the key.
        if ready.version != self.known.version {
            return Err(OperatorError::changed(&format!("Python {}", self.known.version)));
        }
        (self.takes, self.is_class) = (ready.takes, ready.is_class);
        self.check(ready.loaded)
    }

    /// Says with which columns the function is called, if that was not said yet. `input` are all columns, for messages
    /// (empty: rows are the arguments of calls).
    pub(super) fn settle(&mut self, columns: &[String], input: &[String]) -> Result<(), OperatorError> {
        if self.settled {
            return Ok(());
        }
        let setup = json!({"columns": columns, "input": input, "arguments": self.arguments});
        self.send(b'C', setup.to_string().as_bytes());
        let limit = if self.seconds == 0 { 0 } else { self.seconds.max(LEAST_SETUP) };
        let ready = self.ready(limit, "is still being set up")?;
        self.settled = true;
        self.check(ready.loaded)
    }

    /// Waits at most `limit` seconds (0: without a limit) until the process has done what it was told; if it has not,
    /// `what` says what it is doing.
    fn ready(&mut self, limit: u64, what: &str) -> Result<Ready, OperatorError> {
        let frame = match self.next(limit)? {
            Ok(frame) => frame,
            Err(Why::Late) => {
                self.lost(Why::Late)?;
                let output = self.tail.said();
                let message = format!("`{}` {what} after {limit} seconds: its process was stopped{output}", self.name);
                let help = "what waits for a network, an input or a lock does so without an end; a higher \
                            `timeout_seconds` gives it more time";
                return Err(OperatorError::pipeline(message).with_help(help));
            }
            Err(silence) => {
                let failure = self.lost(silence)?;
                let detail = failure.detail.unwrap_or_default();
                let message = format!("`{}` did not start: {}{detail}", self.name, failure.message);
                return Err(OperatorError::pipeline(message));
            }
        };
        match frame.kind {
            b'K' => serde_json::from_slice(&frame.payload).map_err(|_| self.garbled()),
            b'F' => {
                let why: NotReady = serde_json::from_slice(&frame.payload).map_err(|_| self.garbled())?;
                let trace: String = why.traceback.lines().map(|line| format!("\n  {line}")).collect();
                let error = OperatorError::pipeline(format!("{}{trace}", why.message));
                Err(if why.help.is_empty() { error } else { error.with_help(why.help) })
            }
            _ => Err(self.garbled()),
        }
    }

    /// Reads the answer to one row. A row with a secret fails.
    fn read(&self, line: &[u8]) -> Called {
        match (read_row(line), self.passed.named_in_json(line)) {
            (Called::Row(_) | Called::Rows(_), Some(name)) => Called::Failed(Failure::new(Why::Unfit, repeated(name))),
            (called, _) => called,
        }
    }

    fn send(&self, kind: u8, payload: &[u8]) {
        // A process that has ended is noticed by its silence.
        drop(self.requests.as_ref().map(|requests| requests.send(framed(kind, payload))));
    }

    /// Waits for the next frame, at most `seconds` (0: without a limit). If none comes, it is late, or the process has
    /// ended.
    fn next(&mut self, seconds: u64) -> Result<Result<Frame, Why>, OperatorError> {
        let start = Instant::now();
        loop {
            self.context.check_cancelled()?;
            match self.frames.recv_timeout(WATCH) {
                Ok(frame) => return Ok(Ok(frame)),
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(Why::Ended)),
                Err(RecvTimeoutError::Timeout) if seconds > 0 && start.elapsed().as_secs() >= seconds => {
                    return Ok(Err(Why::Late));
                }
                Err(RecvTimeoutError::Timeout) if self.has_ended() => {
                    // A descendant holds the pipe. What the process sent before its end counts.
                    return Ok(self.frames.recv_timeout(WATCH).map_err(|_| Why::Ended));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn has_ended(&mut self) -> bool {
        self.running.as_mut().is_none_or(|running| running.process.try_wait().is_ok_and(|ended| ended.is_some()))
    }

    /// Ends the process and says what happened to the call.
    fn lost(&mut self, silence: Why) -> Result<Failure, OperatorError> {
        let Some(running) = self.running.take() else {
            return Err(OperatorError::engine(format!("the process of `{}` is gone", self.name)));
        };
        // The process closes its pipes before it is gone; a signal is reported only by its end.
        let running = if silence == Why::Ended { awaited(running) } else { running };
        let status = running.end()?;
        self.listened.recv_timeout(GRACE).unwrap_or_default();
        if silence == Why::Late {
            return Ok(Failure::new(silence, format!("the call took more than {} seconds", self.seconds)));
        }
        let how = match succeeded(&self.name, status, &self.tail) {
            Ok(()) => "ended with exit code 0".to_owned(),
            // Killed from outside, usually for memory: no fault of the row.
            Err(error) if error.blame == Blame::Machine => return Err(error),
            Err(_) => match (status.code(), std::os::unix::process::ExitStatusExt::signal(&status)) {
                (Some(code), _) => format!("ended with exit code {code}"),
                (None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
            },
        };
        let lines: Vec<String> = self.tail.lines().into();
        let detail = if lines.is_empty() { None } else { Some(lines.join("\n")) };
        Ok(Failure { detail, ..Failure::new(Why::Ended, format!("the process {how} while it worked on this")) })
    }

    fn garbled(&self) -> OperatorError {
        OperatorError::pipeline(format!("`{}` wrote to a pipe of searchmill", self.name))
            .with_help("let the function write only to files that it opened itself")
    }

    fn check_modules(&self, payload: &[u8]) -> Result<(), OperatorError> {
        self.check(serde_json::from_slice(payload).map_err(|_| self.garbled())?)
    }

    /// Fails if a loaded module, or another file that was read, is no source.
    fn check(&self, loaded: Loaded) -> Result<(), OperatorError> {
        let known = &self.known.files;
        for module in &loaded.modules {
            // A module may lie in an archive: `lib.zip/module.py`.
            let mut above = module.ancestors();
            let file = above.find(|path| known.contains(*path) || path.is_file()).unwrap_or(module);
            if !known.contains(file) {
                let shown = written(file, &self.known.directory);
                let message = format!("`{}` loaded {shown}, which its cache key does not contain", self.name);
                let help = format!("add it to the files of the node: `files: [{shown}]`");
                return Err(OperatorError::pipeline(message).with_help(help));
            }
        }
        // A package that was installed anew is not the one of the key.
        if let Some(package) = self.known.package.as_ref().filter(|package| !package.seen.holds()) {
            return Err(OperatorError::changed(&package.identity));
        }
        let Some(running) = &self.running else { return Ok(()) };
        running.note(loaded.opened);
        running.check_opened(&self.name, &self.context, |path| known.contains(path))
    }

    /// Closes the pipe of requests: the process ends after its work.
    pub(super) fn close(&mut self) {
        self.requests = None;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
        let Some(running) = self.running.take() else { return };
        let deadline = Instant::now() + GRACE;
        // The end of its output shows that the process ends.
        while !self.context.is_cancelled() && Instant::now() < deadline {
            match self.frames.recv_timeout(WATCH) {
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
        if let Err(error) = running.end() {
            self.context.progress().log(&format!("cannot stop the program: {error}"));
        }
        self.listened.recv_timeout(WATCH).unwrap_or_default();
    }
}

/// Waits a moment for the end of a process that closed its pipes.
fn awaited(mut running: Running) -> Running {
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline && matches!(running.process.try_wait(), Ok(None)) {
        thread::sleep(Duration::from_millis(2));
    }
    running
}
