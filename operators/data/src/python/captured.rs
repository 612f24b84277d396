//! Runs a short program to its end and returns what it wrote.

use std::io::Read;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use searchmill_engine::operator::OperatorError;

/// What a program wrote, and how it ended.
pub(super) struct Captured {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The last lines of stderr.
    pub(super) last_output: String,
}

/// Runs a program without input. Its stderr is passed on line by line.
///
/// # Errors
/// Fails if it cannot be started, or takes longer than `patience`.
pub(super) fn captured<'a>(
    words: &[String],
    passed: impl Iterator<Item = &'a str>,
    directory: &Path,
    patience: Duration,
    mut log: impl FnMut(&str) + Send,
) -> Result<Captured, OperatorError> {
    let name = words.first().map_or("", String::as_str);
    let command = searchmill_engine::program(words, passed, directory);
    let mut command = command.ok_or_else(|| OperatorError::engine("a command has no program"))?;
    let mut process = command.spawn().map_err(|error| crate::program::cannot_start(name, &error))?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let tail = searchmill_engine::Tail::default();
    let group = process.id();
    let (ended, wait) = channel::<()>();
    let (read, status, late) = thread::scope(|threads| {
        let reader = threads.spawn(move || -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = stdout {
                pipe.read_to_end(&mut bytes)?;
            }
            Ok(bytes)
        });
        let listener = threads.spawn(|| stderr.into_iter().for_each(|pipe| tail.listen(pipe, &mut log)));
        let watcher = threads.spawn(move || {
            let late = wait.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            // Everything that it started ends, so that its pipes end.
            late && searchmill_engine::end_group(group, "KILL").is_ok()
        });
        let read = reader.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")));
        let status = process.wait();
        // Wakes the watcher, which must not end a group whose number another process may get.
        drop(ended);
        let late = watcher.join().unwrap_or_default();
        drop(listener.join());
        (read, status, late)
    });
    if late {
        let message = format!("`{name}` was stopped after {} seconds{}", patience.as_secs(), tail.said());
        return Err(OperatorError::machine(message));
    }
    match (status, read) {
        (Ok(status), Ok(stdout)) => Ok(Captured { status, stdout, last_output: tail.said() }),
        (Err(error), _) | (_, Err(error)) => Err(OperatorError::machine(format!("cannot run `{name}`: {error}"))),
    }
}
