//! The process of a service, and its port: a free one, and whether another program listens on it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::OperatorError;
use crate::execute::process::{GroupGuard, Tail, end_group, program};
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

/// Ports given to services of this process that have not ended.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port for one service.
pub(crate) struct Port(u16);

impl Port {
    /// Returns a free port that no other service of this process has.
    pub(crate) fn free() -> Result<Self, OperatorError> {
        // Bound together, so that a port that is given away is not found again.
        let mut tried = Vec::new();
        loop {
            let socket = TcpListener::bind(("127.0.0.1", 0))?;
            let number = socket.local_addr()?.port();
            if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(number) {
                return Ok(Self(number));
            }
            tried.push(socket);
        }
    }

    pub(crate) fn number(&self) -> u16 {
        self.0
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        GIVEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Whether a process listens on the port, and none of that group does: its answers must not be taken for those of the
/// service. As Linux's `/proc` shows it; false where that cannot be seen (no `/proc`, another user's process).
fn is_taken(port: u16, group: u32) -> bool {
    const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
    let sockets: BTreeSet<String> = TABLES.iter().flat_map(|table| listening(table, port)).collect();
    if sockets.is_empty() {
        return false;
    }
    let mut is_held = false;
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = process.file_name().to_string_lossy().parse::<u32>().is_ok();
        if is_process && holds(&process.path(), &sockets) {
            // A child of the service may listen in its place.
            if group_of(&process.path()) == Some(group) {
                return false;
            }
            is_held = true;
        }
    }
    is_held
}

/// Returns the sockets that listen on the port, as links of file descriptors name them.
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let mut sockets = Vec::new();
    for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Number, local address, remote address, state, five more, inode.
        let [_, local, _, LISTEN, _, _, _, _, _, inode, ..] = fields[..] else { continue };
        if let Some((_, number)) = local.rsplit_once(':')
            && u16::from_str_radix(number, 16) == Ok(port)
        {
            sockets.push(format!("socket:[{inode}]"));
        }
    }
    sockets
}

fn holds(process: &Path, sockets: &BTreeSet<String>) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
}

/// Returns the process group: the third field after the name, which is in parentheses.
fn group_of(process: &Path) -> Option<u32> {
    let text = fs::read_to_string(process.join("stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_belongs_to_its_group() {
        let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let Some(own) = group_of(Path::new("/proc/self")) else { return };
        assert!(!is_taken(port, own));
        assert!(is_taken(port, own.wrapping_add(1)));
        drop(socket);
        assert!(!is_taken(port, own.wrapping_add(1)), "nobody listens");
    }

    #[test]
    fn ports_are_given_once() {
        let ports: Vec<Port> = (0..50).map(|_| Port::free().unwrap()).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), 50);
    }
}
