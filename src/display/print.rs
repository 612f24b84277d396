//! Prints lines to stdout and stderr.

use std::io::Write;

use super::safe::safe;

/// Prints to stdout. A closed pipe ends the output, not the program.
pub(super) fn out(text: &str) {
    // Locked for the whole text: lines of other threads do not come in between.
    let mut stream = anstream::stdout().lock();
    // Escaped here: no caller has to think of control sequences in data.
    if writeln!(stream, "{}", safe(text)).is_err() {
        tracing::debug!("stdout is closed");
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
