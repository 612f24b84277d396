//! The one place outside of the engine that starts a program: spawn, feed, watch, and say how it ended.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use searchmill_engine::operator::{Context, OperatorError, RowsInput};

/// Lines of stderr that an error message shows.
const TAIL: usize = 20;
/// Longest line of stderr that is kept, in bytes.
const LINE: u64 = 8192;
/// How often cancellation and the time limit are looked at.
const WATCH: Duration = Duration::from_millis(50);
/// What every program sees of the environment.
const ALWAYS: [&str; 3] = ["PATH", "HOME", "LANG"];

/// What to run.
pub(super) struct Program<'a> {
    /// Program and arguments.
    pub(super) command: &'a [String],
    /// Variables made for it.
    pub(super) given: BTreeMap<String, String>,
    /// Variables passed through.
    pub(super) allowed: &'a [String],
    /// Time limit; 0: none.
    pub(super) seconds: u64,
}

/// A running program.
pub(super) struct Child {
    process: std::process::Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    name: String,
    seconds: u64,
}

impl Child {
    /// Starts it in the pipeline's working directory, in a process group of its own.
    ///
    /// # Errors
    /// When it is not there or may not be run.
    pub(super) fn start(program: &Program, context: &Context) -> Result<Self, OperatorError> {
        let name = program.command.first().cloned().unwrap_or_default();
        let passed = ALWAYS.into_iter().chain(program.allowed.iter().map(String::as_str));
        let passed = passed.filter_map(|name| std::env::var_os(name).map(|value| (name, value)));
        let spawned = Command::new(&name)
            .args(program.command.iter().skip(1))
            .env_clear()
            .envs(passed)
            .envs(&program.given)
            .current_dir(context.resolve("."))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = spawned.map_err(|error| cannot_start(&name, &error))?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(OperatorError::engine("the program was started without pipes"));
        };
        Ok(Self { process, stdin, stdout: BufReader::new(stdout), stderr, name, seconds: program.seconds })
    }

    /// Feeds the rows while `receive` reads the answer; nothing waits for the other side to finish.
    ///
    /// # Errors
    /// Interrupted, out of time, exit code other than 0, rows that cannot be read, or what `receive` said: the first
    /// of these that applies.
    pub(super) fn converse(
        mut self,
        input: Option<&RowsInput>,
        context: &Context,
        receive: impl FnOnce(&mut BufReader<ChildStdout>) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        let watch = Watch::new(self.process.id(), self.seconds, context);
        let (stdin, stderr, stdout) = (self.stdin, self.stderr, &mut self.stdout);
        let process = &mut self.process;
        let (fed, tail, received, ended) = thread::scope(|threads| {
            let feeder = threads.spawn(|| feed(stdin, input));
            let listener = threads.spawn(|| listen(stderr, context));
            let watcher = threads.spawn(|| watch.keep());
            let received = receive(stdout);
            // A program that failed half-way must be able to end by itself, so that its own message is the one shown.
            let drained = std::io::copy(stdout, &mut std::io::sink());
            let ended = drained.and_then(|_| process.wait());
            watch.end();
            watcher.thread().unpark();
            (joined(feeder.join()), joined(listener.join()), received, ended)
        });
        context.check_cancelled()?;
        watch.in_time(&self.name)?;
        succeeded(&self.name, ended?, &tail?)?;
        fed??;
        received
    }
}

fn joined<T>(result: thread::Result<T>) -> Result<T, OperatorError> {
    result.map_err(|_| OperatorError::engine("a thread that talks to the program panicked"))
}

fn cannot_start(name: &str, error: &std::io::Error) -> OperatorError {
    let failure = OperatorError::machine(format!("cannot start `{name}`: {error}"));
    match error.kind() {
        ErrorKind::NotFound => failure.with_help(format!("install `{name}` or write its full path in `command`")),
        ErrorKind::PermissionDenied => failure.with_help(format!("make it executable: `chmod +x {name}`")),
        _ => failure,
    }
}

/// Writes the rows; a program that stops reading early is no failure.
fn feed(stdin: ChildStdin, input: Option<&RowsInput>) -> Result<(), OperatorError> {
    let Some(input) = input else { return Ok(()) };
    let mut batches = input.batches();
    match write_stream(stdin, input, &mut batches) {
        Ok(()) => Ok(()),
        Err(Fed::Rows(error)) => Err(error),
        Err(Fed::Pipe(ArrowError::IoError(_, error))) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Fed::Pipe(error)) => Err(OperatorError::machine(format!("cannot write to the program: {error}"))),
    }
}

/// What went wrong while feeding.
enum Fed {
    Rows(OperatorError),
    Pipe(ArrowError),
}

fn write_stream(
    stdin: ChildStdin,
    input: &RowsInput,
    batches: &mut dyn Iterator<Item = Result<arrow::array::RecordBatch, OperatorError>>,
) -> Result<(), Fed> {
    let mut writer = StreamWriter::try_new(BufWriter::new(stdin), &input.schema).map_err(Fed::Pipe)?;
    for batch in batches {
        writer.write(&batch.map_err(Fed::Rows)?).map_err(Fed::Pipe)?;
    }
    writer.finish().map_err(Fed::Pipe)?;
    writer.get_mut().flush().map_err(|error| Fed::Pipe(error.into()))
}

/// Logs stderr line by line and keeps the last lines.
fn listen(stderr: ChildStderr, context: &Context) -> VecDeque<String> {
    let (mut stderr, mut tail, mut line) = (BufReader::new(stderr), VecDeque::new(), Vec::new());
    loop {
        line.clear();
        match stderr.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return tail,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                context.progress().log(&text);
                tail.push_back(text);
                if tail.len() > TAIL {
                    tail.pop_front();
                }
            }
        }
    }
}

fn succeeded(name: &str, ended: ExitStatus, tail: &VecDeque<String>) -> Result<(), OperatorError> {
    if ended.success() {
        return Ok(());
    }
    let how = match (ended.code(), ended.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "did not end well".to_owned(),
    };
    let said = if tail.is_empty() { ", without a word on stderr".to_owned() } else { format!(":\n{}", join(tail)) };
    Err(OperatorError::pipeline(format!("`{name}` {how}{said}"))
        .with_help("its stderr is in the log of this node; `searchmill logs` shows all of it"))
}

fn join(lines: &VecDeque<String>) -> String {
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Stops the program when the run is cancelled or its time is up.
struct Watch<'a> {
    context: &'a Context,
    group: u32,
    deadline: Option<Instant>,
    seconds: u64,
    ended: AtomicBool,
    late: AtomicBool,
}

impl<'a> Watch<'a> {
    fn new(group: u32, seconds: u64, context: &'a Context) -> Self {
        let deadline = (seconds > 0).then(|| Instant::now().checked_add(Duration::from_secs(seconds))).flatten();
        Self { context, group, deadline, seconds, ended: AtomicBool::new(false), late: AtomicBool::new(false) }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn keep(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if late || self.context.is_cancelled() {
                self.late.store(late, Ordering::Release);
                self.kill();
                return;
            }
            thread::park_timeout(WATCH);
        }
    }

    /// Kills the program and all that it started: the process group has the program's own id.
    fn kill(&self) {
        let command = format!("kill -KILL -{}", self.group);
        let killed = Command::new("/bin/sh").args(["-c", &command]).stderr(Stdio::null()).status();
        if let Err(error) = killed {
            self.context.progress().log(&format!("cannot stop the program: {error}"));
        }
    }

    fn in_time(&self, name: &str) -> Result<(), OperatorError> {
        if !self.late.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = format!("`{name}` was stopped after {} seconds", self.seconds);
        Err(OperatorError::machine(message).with_help("raise `timeout_seconds`, or leave it out for no limit"))
    }
}
