//! MCP over lines of text: requests on stdin, answers through a function that writes lines.

use std::io::BufRead;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::serve::env::mcp;
use crate::serve::env::state::Env;

/// Lines that wait for an answer.
const WAITING: usize = 64;

/// Answers the lines of stdin until its end, in their order.
pub(crate) async fn serve(env: Arc<Env>, write: impl Fn(&str), until: impl Future<Output = ()>) {
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
        let Some(line) = line else { return };
        if line.trim_ascii().is_empty() {
            continue;
        }
        if let Some(answer) = mcp::read(&env.view("stdio"), &line).await {
            write(&answer.to_string());
        }
    }
}
