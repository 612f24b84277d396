//! Runs external programs: spawns, supervises and kills them with all their descendants, and reports how they ended.
//!
//! Nothing else outside the engine starts programs.

mod arrow_table;
mod observer;
mod opened;
mod passed;
mod pipe;
mod sources;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use searchmill_engine::operator::{Context, OperatorError, ParamIssue};
use searchmill_engine::{GroupGuard, Lent, Tail};

use opened::Opened;

pub use arrow_table::ArrowTable;
pub use passed::Passed;
pub(crate) use passed::repeated;
pub use pipe::Pipe;
pub(crate) use sources::located;
pub use sources::{Command, command_sources, named, unseen};
pub(crate) use words::plain;

/// How often cancellation and the time limit are checked.
const WATCH: Duration = Duration::from_millis(50);
/// Environment variables that every program gets.
const ALWAYS: [&str; 2] = ["PATH", "HOME"];
/// A program to run.
pub struct Program<'a> {
    /// Program and arguments.
    pub command: &'a [String],
    /// Variables set for the program.
    pub given: BTreeMap<String, String>,
    /// Variables passed through from the environment.
    pub allowed: &'a [String],
    /// Files and folders that it writes besides its output: what it reads there need not be in the cache key.
    pub writes: &'a [String],
    /// Timeout in seconds (0 = none).
    pub seconds: u64,
}

/// A running program in its own process group. Dropping it early kills the program and all its descendants.
pub struct Running {
    pub process: Child,
    name: String,
    seconds: u64,
    guard: GroupGuard,
    observed: bool,
    opened: Arc<Opened>,
}

impl Program<'_> {
    /// Starts the program in the pipeline's working directory, with pipes for its output.
    ///
    /// # Errors
    /// Fails if it is missing or not executable.
    pub fn start(&self, stdin: Stdio, context: &Context) -> Result<Running, OperatorError> {
        let name = self.command.first().cloned().unwrap_or_default();
        // Before the program can repeat them.
        for name in self.allowed {
            context.redactor().learn_variable(name);
        }
        let passed = ALWAYS.into_iter().chain(self.allowed.iter().map(String::as_str));
        let command = searchmill_engine::program(self.command, passed, &context.resolve("."));
        let mut command = command.ok_or_else(|| OperatorError::engine("a command has no program"))?;
        let exempt = sources::absolute_paths(self.command, &context.resolve("."));
        let opened = Arc::new(Opened::new(context, self.allowed, self.writes, exempt));
        let observed = observer::observe(&mut command, &opened);
        if !observed {
            // An empty folder: no bytecode of an older source is found.
            command.env("PYTHONPYCACHEPREFIX", context.scratch().join("bytecode"));
        }
        let spawned = command.envs(&self.given).stdin(stdin).spawn();
        let process = spawned.map_err(|error| cannot_start(&name, &error))?;
        let guard = GroupGuard::of(process.id());
        Ok(Running { process, name, seconds: self.seconds, guard, observed, opened })
    }
}

impl Running {
    /// Takes stdout and stderr, as far as they are not taken. They end soon after the program, even if a process that it
    /// started holds them open.
    pub fn outputs(&mut self) -> Option<(Pipe, Pipe)> {
        let (stdout, stderr) = (self.process.stdout.take()?, self.process.stderr.take()?);
        let process = self.process.id();
        Some((Pipe::of(stdout.into(), process), Pipe::of(stderr.into(), process)))
    }

    /// Whether the system tells which files it opens.
    pub(crate) fn is_observed(&self) -> bool {
        self.observed
    }

    /// Notes what it says it has opened or listed, with the flags of `open`.
    pub(crate) fn note(&self, opened: Vec<(String, i32)>) {
        for (path, flags) in opened {
            self.opened.note(opened::Asked { path: path.into(), flags, process: None });
        }
    }

    /// Compares the user's files that the program read so far with the node's cache key. `name` stands for the program
    /// in the message; `also` says which files the key covers besides.
    ///
    /// # Errors
    /// Fails if the key does not cover one of them.
    pub fn check_opened(
        &self,
        name: &str,
        context: &Context,
        also: impl Fn(&Path) -> bool,
    ) -> Result<(), OperatorError> {
        // Without a key, nothing is remembered.
        self.opened.check(name, |path| also(path) || context.covers(path).unwrap_or(true))
    }

    /// Ends the program with all its descendants, if it has not ended, and returns how it ended.
    ///
    /// # Errors
    /// Fails if its end cannot be awaited.
    pub fn end(mut self) -> std::io::Result<ExitStatus> {
        searchmill_engine::end_group(self.process.id(), "KILL")?;
        self.guard.relieve();
        self.process.wait()
    }

    /// Supervises the program while `talk` communicates with it; `talk` must wait for its end.
    ///
    /// # Errors
    /// Cancelled, timed out, or unsuccessful end (with the tail of the log); the first that applies.
    pub fn watched<T>(
        mut self,
        context: &Context,
        log: &Log<'_>,
        talk: impl FnOnce(&mut Child) -> std::io::Result<(ExitStatus, T)>,
    ) -> Result<T, OperatorError> {
        let (process, name, opened, seconds) = (&mut self.process, &self.name, &self.opened, self.seconds);
        // A deadline beyond the clock's range is none.
        let deadline = if seconds > 0 { Instant::now().checked_add(Duration::from_secs(seconds)) } else { None };
        let (ended, late) = (AtomicBool::new(false), AtomicBool::new(false));
        let watch = Watch { context, group: process.id(), deadline, ended, late };
        let talked = thread::scope(|threads| {
            let watcher = threads.spawn(|| watch.supervise(|| check_covered(opened, name, context)));
            let talked = talk(process);
            // In this order: the watcher looks at the flag when it is woken.
            watch.ended.store(true, Ordering::Release);
            watcher.thread().unpark();
            talked
        });
        context.check_cancelled()?;
        if watch.late.load(Ordering::Acquire) {
            let message = format!("`{name}` was stopped after {seconds} seconds");
            let help = "raise `timeout_seconds`, or leave it out for no limit";
            return Err(OperatorError::machine(message).with_help(help));
        }
        // Says why it was stopped, before the signal that stopped it.
        check_covered(opened, name, context)?;
        let (ended, result) = talked?;
        self.guard.relieve();
        succeeded(name, ended, &log.tail)?;
        Ok(result)
    }
}

fn check_covered(opened: &Opened, name: &str, context: &Context) -> Result<(), OperatorError> {
    // Without a key, nothing is remembered.
    opened.check(name, |path| context.covers(path).unwrap_or(true))
}

pub(crate) fn cannot_start(name: &str, error: &std::io::Error) -> OperatorError {
    let failure = OperatorError::machine(format!("cannot start `{name}`: {error}"));
    match error.kind() {
        ErrorKind::NotFound => failure.with_help(format!("install `{name}` or write its full path")),
        ErrorKind::PermissionDenied => failure.with_help(format!("make it executable: `chmod +x {name}`")),
        _ => failure,
    }
}

/// Reports invalid names of environment variables, with their positions below `path`.
pub fn variable_issues<'a>(path: &'a str, names: &'a [String]) -> impl Iterator<Item = ParamIssue> + 'a {
    let wrong = names.iter().enumerate().filter(|(_, name)| name.is_empty() || name.contains(['=', '\0']));
    wrong.map(move |(index, _)| {
        ParamIssue::new(format!("{path}.{index}"), "is not a variable name")
            .with_help("write names only; the values come from the run's environment")
    })
}

/// Reports invalid entries of `writes`, with their positions below `path`.
pub fn write_issues<'a>(path: &'a str, writes: &'a [String]) -> impl Iterator<Item = ParamIssue> + 'a {
    sources::wrong_writes(writes).map(move |index| {
        ParamIssue::new(format!("{path}.{index}"), "it contains the working directory, so the key would cover no file")
            .with_help("name the files and folders that the program writes")
    })
}

/// The program's output: every line goes to the node's log, the last lines are stored.
pub struct Log<'a> {
    context: &'a Context,
    tail: Tail,
}

impl<'a> Log<'a> {
    pub fn new(context: &'a Context) -> Self {
        Self { context, tail: Tail::default() }
    }

    /// Reads all lines to the end of the pipe.
    pub fn listen(&self, pipe: impl Read) {
        self.tail.listen(pipe, |line| self.context.progress().log(line));
    }
}

/// Checks after a program's end that it left the store's files alone.
///
/// # Errors
/// Fails if it changed a file of an input.
pub fn unchanged(lent: &[Lent]) -> Result<(), OperatorError> {
    let Some(path) = lent.iter().find_map(Lent::changed) else { return Ok(()) };
    let message = format!("the program changed a file of its input: {}", path.display());
    Err(OperatorError::pipeline(message)
        .with_help("copy the folder before changing it; what made the input makes it again in the next run"))
}

pub(crate) fn succeeded(name: &str, ended: ExitStatus, tail: &Tail) -> Result<(), OperatorError> {
    if ended.success() {
        return Ok(());
    }
    let (how, signal) = match (ended.code(), ended.signal()) {
        (Some(code), _) => (format!("ended with exit code {code}"), signal_of_code(code)),
        (None, Some(signal)) => (format!("was killed by signal {signal}"), Some(signal)),
        (None, None) => ("ended abnormally".to_owned(), None),
    };
    let output = tail.said();
    if let Some(help) = out_of_memory(signal, &tail.lines()) {
        let by = match (signal, ended.code()) {
            (Some(signal), Some(_)) => format!(" (a program that it started was killed by signal {signal})"),
            _ => String::new(),
        };
        return Err(OperatorError::machine(format!("`{name}` ran out of memory: it {how}{by}{output}")).with_help(help));
    }
    Err(OperatorError::pipeline(format!("`{name}` {how}{output}"))
        .with_help("its output is in the node's log: `searchmill logs`"))
}

/// Returns the signal behind an exit code: shells use 128 + signal, Python's `sys.exit(-signal)` 256 - signal.
fn signal_of_code(code: i32) -> Option<i32> {
    match code {
        129..=159 => Some(code - 128),
        225..=255 => Some(256 - code),
        _ => None,
    }
}

/// Messages of frameworks that ran out of memory; `OutOfMemoryError` ends with one of them.
const OUT_OF_MEMORY: [&str; 5] = [
    "CUDA out of memory",
    "CUDA error: out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "MemoryError",
    "Cannot allocate memory",
];

/// Returns advice if the program ran out of memory: its log says so, or the kernel killed it.
fn out_of_memory(signal: Option<i32>, tail: &VecDeque<String>) -> Option<&'static str> {
    if tail.iter().any(|line| OUT_OF_MEMORY.iter().any(|words| line.contains(words))) {
        return Some("give it less work at a time (smaller device batches, shorter texts) or more memory");
    }
    let help = "signal 9 usually means that the machine had no memory left. Give the program less work at a time, or the \
                machine more memory";
    if signal == Some(9) { Some(help) } else { None }
}

/// Kills the program when the run is cancelled or its time is up.
struct Watch<'a> {
    context: &'a Context,
    group: u32,
    deadline: Option<Instant>,
    ended: AtomicBool,
    late: AtomicBool,
}

impl Watch<'_> {
    /// `covered` fails once the program has read what no key covers: the rest of its work would be lost.
    fn supervise(&self, covered: impl Fn() -> Result<(), OperatorError>) {
        while !self.ended.load(Ordering::Acquire) {
            let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if late || self.context.is_cancelled() || covered().is_err() {
                self.late.store(late, Ordering::Release);
                // With all its descendants: the process group has the program's id.
                if let Err(error) = searchmill_engine::end_group(self.group, "KILL") {
                    self.context.progress().log(&format!("cannot stop the program: {error}"));
                }
                return;
            }
            thread::park_timeout(WATCH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_found_behind_exit_codes() {
        assert_eq!([137, 139, 247, 1, 0, 128].map(signal_of_code), [Some(9), Some(11), Some(9), None, None, None]);
        let tail = VecDeque::from(["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB".to_owned()]);
        assert!(out_of_memory(None, &tail).is_some());
        assert!(out_of_memory(Some(11), &VecDeque::new()).is_none());
    }
}
