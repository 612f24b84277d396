//! MCP over lines of text: requests on stdin, answers through a function that writes lines.

use std::io::BufRead;

use tokio::sync::mpsc;

use crate::serve::env::mcp;
use crate::serve::env::state::Setup;

/// Lines that wait for an answer.
const WAITING: usize = 64;

/// Answers the lines of stdin with `write`, in their order, until its end or `until`.
///
/// # Errors
/// If the search cannot be started.
pub(crate) async fn serve(setup: Setup, write: impl Fn(&str), until: impl Future<Output = ()>) -> std::io::Result<()> {
    let (env, _asked) = setup.start()?;
    // Bounded: when it is full, stdin is not read, and the client waits.
    let (sender, mut lines) = mpsc::channel(WAITING);
    // The thread ends with the process: a read of stdin cannot be interrupted.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().split(b'\n') {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let mut until = std::pin::pin!(until);
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            () = &mut until => None,
        };
        let Some(line) = line else { return Ok(()) };
        if line.trim_ascii().is_empty() {
            continue;
        }
        if let Some(answer) = mcp::read(&env.view("stdio"), &line).await {
            write(&answer.to_string());
        }
    }
}
