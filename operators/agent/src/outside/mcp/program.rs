//! MCP over stdio: a program reads and writes one JSON-RPC message per line. It is started for its first request, and
//! again after it ended or hung; it dies with this process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use searchmill_data::program::{Log, Program, Running};
use searchmill_engine::operator::{CallFailure, Context, FailureKind, OperatorError};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::super::params::McpParams;
use super::super::wire::{MOST_BYTES, late};
use super::message::{Fault, response};

/// An MCP server that is a program.
pub(super) struct ProgramServer {
    params: McpParams,
    timeout: Duration,
    context: Context,
    running: Mutex<Option<Talk>>,
}

/// Most places of a line at which a message is looked for.
const MOST_STARTS: usize = 16;

type Waiting = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>>;

/// A running program and the requests that wait for it.
struct Talk {
    lines: Sender<String>,
    waiting: Waiting,
    ended: Arc<AtomicBool>,
    program: Running,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProgramServer {
    pub(super) fn new(params: &McpParams, timeout: Duration, context: Context) -> Self {
        Self { params: params.clone(), timeout, context, running: Mutex::default() }
    }

    /// Fails if the program has read a file of the user that no key covers.
    fn covered(&self) -> Result<(), Fault> {
        let running = locked(&self.running);
        let Some(talk) = running.as_ref() else { return Ok(()) };
        // A name in the params stands for all files of the program.
        let is_named = self.params.service.is_some();
        let checked = talk.program.check_opened(&self.params.who(), &self.context, |_| is_named);
        let Err(error) = checked else { return Ok(()) };
        let failure = CallFailure::new(FailureKind::Refused, error.text(), None);
        Err(Fault::Failed(CallFailure { same_for_all: true, ..failure }))
    }

    /// Whether the program runs: otherwise the next request starts it, and the handshake comes first.
    pub(super) fn is_running(&self) -> bool {
        locked(&self.running).as_ref().is_some_and(|talk| !talk.ended.load(Ordering::Acquire))
    }

    /// Sends a request and waits for its result.
    pub(super) async fn request(&self, message: &Value, id: u64) -> Result<Value, Fault> {
        let answer = self
            .ask(message, id)
            .map_err(|error| Fault::Failed(CallFailure::new(FailureKind::Connection, error.to_string(), None)))?;
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(message)) => {
                // Before the answer is used: a file that no key covers may have decided it.
                self.covered()?;
                response(&message, id).unwrap_or(Err(Fault::Gone))
            }
            Ok(Err(_)) => {
                locked(&self.running).take();
                let message = "the program ended before it answered; its output is in the node's log";
                Err(Fault::Failed(CallFailure::new(FailureKind::Connection, message.to_owned(), None)))
            }
            Err(_) => {
                // A program that hangs would let every call time out: the next request starts another one.
                locked(&self.running).take();
                Err(Fault::Failed(late(self.timeout)))
            }
        }
    }

    /// Sends a notification.
    pub(super) fn notify(&self, message: &Value) {
        if let Some(talk) = locked(&self.running).as_ref() {
            // A program that ended is noticed by the next request.
            drop(talk.lines.send(message.to_string()));
        }
    }

    fn ask(&self, message: &Value, id: u64) -> Result<oneshot::Receiver<Value>, OperatorError> {
        let mut running = locked(&self.running);
        // Locked until the request is registered: two requests must not start two programs.
        let talk = match running.take().filter(|talk| !talk.ended.load(Ordering::Acquire)) {
            Some(talk) => talk,
            None => self.start()?,
        };
        let (sender, receiver) = oneshot::channel();
        // Before the line is sent: the answer may come at any time after it.
        locked(&talk.waiting).insert(id, sender);
        drop(talk.lines.send(message.to_string()));
        // A program that has ended answers nothing: the sender of the answer is dropped.
        if talk.ended.load(Ordering::Acquire) {
            locked(&talk.waiting).clear();
        }
        *running = Some(talk);
        Ok(receiver)
    }

    fn start(&self) -> Result<Talk, OperatorError> {
        let given = BTreeMap::new();
        let command = self.params.command.as_deref().unwrap_or_default();
        let (allowed, writes) = (&self.params.environment, &self.params.writes);
        // The timeout is one of requests: the program itself lives as long as the node.
        let program = Program { command, given, allowed, writes, seconds: 0 };
        let mut program = program.start(Stdio::piped(), &self.context)?;
        let waiting = Waiting::default();
        let (lines, written) = channel();
        let process = &mut program.process;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(OperatorError::engine("a program was started without pipes"));
        };
        // Threads of their own: a program that reads slowly must block no row, and one whose output nobody reads
        // would stop.
        std::thread::spawn(move || write(stdin, &written));
        let context = self.context.clone();
        std::thread::spawn(move || Log::new(&context).listen(stderr));
        let (replies, waits) = (lines.clone(), Arc::clone(&waiting));
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let context = self.context.clone();
        std::thread::spawn(move || {
            read(stdout, &waits, &replies, &Log::new(&context));
            // First the mark, then the waiting requests: one that is registered in between sees the mark, and is
            // dropped there.
            end.store(true, Ordering::Release);
            locked(&waits).clear();
        });
        Ok(Talk { lines, waiting, ended, program })
    }
}

/// Writes lines until the program or the client ends.
fn write(mut stdin: ChildStdin, lines: &Receiver<String>) {
    for mut line in lines {
        line.push('\n');
        if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Reads messages until the program ends; requests that still wait are then dropped. What is no message goes to the log.
fn read(stdout: ChildStdout, waiting: &Waiting, replies: &Sender<String>, log: &Log<'_>) {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line that does not end must not fill the memory.
        let most = MOST_BYTES as u64;
        match stdout.by_ref().take(most).read_until(b'\n', &mut line) {
            Ok(count) if count > 0 && line.ends_with(b"\n") => {}
            _ => break,
        }
        let (said, message) = message_in(&line);
        if !said.trim_ascii().is_empty() {
            log.listen(said);
        }
        let Some(message) = message else { continue };
        match (message.get("method").and_then(Value::as_str), message.get("id")) {
            // By way of the writer's thread: parts of two lines must not mix.
            (Some(method), Some(id)) => drop(replies.send(reply(method, id).to_string())),
            (None, Some(id)) => {
                let waits = id.as_u64().and_then(|id| locked(waiting).remove(&id));
                if let Some(waits) = waits {
                    // The request may have given up.
                    drop(waits.send(message));
                }
            }
            // Notifications (logs, progress) want no reply.
            _ => {}
        }
    }
}

/// Returns the message of a line, and what stands before it: a program may print without a line end.
fn message_in(line: &[u8]) -> (&[u8], Option<Value>) {
    if let Ok(message) = serde_json::from_slice(line) {
        return (&[], Some(message));
    }
    let starts = line.iter().enumerate().filter(|(_, byte)| **byte == b'{').map(|(place, _)| place);
    // Each place parses the rest of the line again: a long line of braces must not take forever.
    for start in starts.take(MOST_STARTS) {
        if let Ok(message) = serde_json::from_slice::<Value>(&line[start..])
            // A line of a log may end in JSON that is no message.
            && message.get("jsonrpc").is_some()
        {
            return (&line[..start], Some(message));
        }
    }
    (line, None)
}

/// What the client answers to a request of the server: it lives, and offers nothing else.
fn reply(method: &str, id: &Value) -> Value {
    if method == "ping" {
        return json!({"jsonrpc": "2.0", "id": id, "result": {}});
    }
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "this client offers no methods"}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_behind_what_was_printed_without_a_line_end() {
        let message = json!({"jsonrpc": "2.0", "id": 1, "result": {"a": {}}});
        for before in ["", "loading {model} ... ", "{\"a\": 1}", "\u{e9}"] {
            let line = format!("{before}{message}\n");
            assert_eq!(message_in(line.as_bytes()), (before.as_bytes(), Some(message.clone())));
        }
        for line in ["a line\n", "{\"level\": \"info\"} {\"a\": 1}\n", &"{".repeat(1000)] {
            assert_eq!(message_in(line.as_bytes()), (line.as_bytes(), None));
        }
    }
}
