//! Prints lines to stdout and stderr.

use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use super::safe::safe;

/// Why a line of the result could not be written: the first time.
static LOST: OnceLock<String> = OnceLock::new();

/// Returns why some of what was printed to stdout is lost. A reader that closed its pipe wanted no more of it.
pub(super) fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

/// Prints to stdout. A closed pipe or a full disk ends the output, not the program.
pub(super) fn out(text: &str) {
    // Locked for the whole text: lines of other threads do not come in between.
    let mut stream = anstream::stdout().lock();
    // Escaped here: no caller has to think of control sequences in data.
    match writeln!(stream, "{}", safe(text)) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => tracing::debug!("stdout is closed"),
        Err(error) => drop(LOST.set(error.to_string())),
    }
}

/// Prints to stderr.
pub(super) fn err(text: &str) {
    let mut stream = anstream::stderr().lock();
    if writeln!(stream, "{}", safe(text)).is_err() {
        tracing::debug!("stderr is closed");
    }
}

/// Prints a text without ending its line.
pub(super) fn err_open(text: &str) {
    let mut stream = anstream::stderr().lock();
    if write!(stream, "{}", safe(text)).and_then(|()| stream.flush()).is_err() {
        tracing::debug!("stderr is closed");
    }
}
