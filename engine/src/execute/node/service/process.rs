//! The process of a service.

use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::listener::is_taken;
use crate::error::OperatorError;
use crate::execute::process::group_guard::{GroupGuard, end_group};
use crate::execute::process::program::{Tail, program};
use crate::operator::ProgressSink;
use crate::spec::ServiceSpec;

/// Environment variables that every service gets.
const ALWAYS: [&str; 4] = ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"];
/// Time a service has to end before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Interval between checks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

/// A running service in its own process group.
pub(crate) struct Process {
    name: String,
    child: Child,
    guard: GroupGuard,
    port: u16,
    tail: Arc<Tail>,
}

impl Process {
    /// Starts a service. `visible`: the value of `CUDA_VISIBLE_DEVICES`, if GPUs are leased for it.
    pub(crate) fn start(
        service: &ServiceSpec,
        words: &[String],
        directory: &Path,
        port: u16,
        visible: Option<String>,
        progress: Arc<dyn ProgressSink>,
    ) -> Result<Self, OperatorError> {
        let passed = ALWAYS.into_iter().chain(service.env.iter().map(String::as_str));
        // In a process group of its own, so that a signal reaches what it starts, too.
        let Some(mut command) = program(words, passed, directory) else {
            return Err(OperatorError::engine("a service has no program"));
        };
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        let name = service.name.clone();
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().display();
            OperatorError::machine(format!("cannot start `{program}` for the service `{name}`: {error}"))
                .with_help("write the program's full path, or add its folder to PATH")
        })?;
        let guard = GroupGuard::of(child.id());
        let tail = Arc::new(Tail::default());
        if let Some(pipe) = child.stdout.take() {
            listen(&name, pipe, &tail, &progress);
        }
        if let Some(pipe) = child.stderr.take() {
            listen(&name, pipe, &tail, &progress);
        }
        Ok(Self { name, child, guard, port, tail })
    }

    /// Whether another program listens on its port.
    pub(super) fn port_is_taken(&self) -> bool {
        is_taken(self.port, self.child.id())
    }

    /// Returns an error if it has ended by itself.
    pub(crate) fn fault(&mut self) -> Option<OperatorError> {
        let ended = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        // The last lines may still be in the pipe.
        std::thread::sleep(LOOK);
        let message = format!("the service `{}` has ended ({ended}){}", self.name, self.tail.said());
        Some(OperatorError::pipeline(message).with_help("its output is in the node's log: `searchmill logs`"))
    }

    /// Returns the error of a service that was not ready in time.
    pub(crate) fn late(process: Option<&Self>, service: &ServiceSpec, answer: &str) -> OperatorError {
        let (name, seconds, ready) = (&service.name, service.within.as_secs(), &service.ready);
        let said = process.map(|process| process.tail.said()).unwrap_or_default();
        let message =
            format!("the service `{name}` was not ready after {seconds} seconds: {ready} answered {answer}{said}");
        OperatorError::pipeline(message).with_help("give it more time (`within: 30m`), or correct `ready`")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Without a shell, the guard below still kills it.
            drop(end_group(self.child.id(), "TERM"));
            let start = Instant::now();
            while start.elapsed() < GRACE && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(LOOK);
            }
        }
        // Also if it has ended: what it started may still run.
        drop(end_group(self.child.id(), "KILL"));
        drop(self.child.wait());
        self.guard.relieve();
    }
}

/// Reads a pipe on another thread, line by line: a full pipe would block the service.
fn listen(name: &str, pipe: impl Read + Send + 'static, tail: &Arc<Tail>, progress: &Arc<dyn ProgressSink>) {
    let (name, tail, progress) = (name.to_owned(), Arc::clone(tail), Arc::clone(progress));
    std::thread::spawn(move || tail.listen(pipe, |line| progress.log(&format!("{name}: {line}"))));
}
