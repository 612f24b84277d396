//! The parent's side: starts a worker, forwards its messages, supervises it and reports how it ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{CONTRACT, Message, WorkerTask};
use crate::error::OperatorError;
use crate::events::Event;
use crate::execute::node::job::{NodeJob, Ran};
use crate::execute::settings::device::DeviceLease;
use crate::operator::ContextParts;

/// Lines of a worker's stderr shown in an error message (at most).
const TAIL: usize = 20;
/// Interval between checks of stop requests and time limits.
const LOOK: Duration = Duration::from_millis(100);
/// Time a worker has to stop before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Default time without a message after which a worker counts as dead; workers send a heartbeat every second.
const SILENCE: Duration = Duration::from_mins(5);
/// Help text for a worker whose shared libraries are missing.
const UNLINKED: &str = "the worker did not start: libcuda.so.1 comes with NVIDIA's driver, the other CUDA libraries with the toolkit that it \
                        was built with (add their folder to LD_LIBRARY_PATH); `searchmill doctor` lists missing libraries";
/// Help text for a worker that the system killed.
const KILLED: &str = "signal 9 usually means that the machine had no memory left. Lower the node's load, or add memory";
/// Starts of a worker that dies (at most).
const STARTS: u32 = 2;

/// Runs the node in a separate process and restarts that process once if it dies.
pub(in crate::execute) fn run_in_worker(
    job: &NodeJob,
    params: &Value,
    parts: &ContextParts,
    program: &Path,
) -> Result<Ran, OperatorError> {
    let workers = &job.run.options.asked.workers;
    let gpus = workers.gpus(&job.node().spec.resources);
    let lease = DeviceLease::take(&workers.devices, gpus as usize, &job.run.stop)?;
    let task = worker_task(job, params, parts, gpus)?;
    let path = job.run.store.keep_task(&task)?;
    let mut starts = 0;
    let outcome = loop {
        starts += 1;
        match Supervised::start(job, program, &path, &lease)?.run() {
            Ok(done) => break done,
            Err(death) if starts < STARTS && !job.run.stop.is_draining() => {
                let line = format!("{}; it is started once more", death.message);
                job.run.reporter.event(&Event::NodeLog { node: job.node().id().to_owned(), line });
            }
            Err(death) => break Err(death),
        }
    };
    // Not before: a worker that is started once more reads it.
    job.run.store.drop_task(&path);
    outcome
}

fn worker_task(job: &NodeJob, params: &Value, parts: &ContextParts, gpus: u32) -> Result<Vec<u8>, OperatorError> {
    let node = job.node();
    let (row_base, block_base) = job.bases();
    let inputs = job.kernel_inputs().map(|(input, record)| (input.port.clone(), record.id));
    let task = WorkerTask {
        contract: CONTRACT,
        store: job.run.store.root().to_owned(),
        key: job.key,
        node: node.id().to_owned(),
        operator: node.entry.name.to_owned(),
        version: node.entry.version,
        params: params.clone(),
        seed: node.spec.seed,
        inputs: inputs.collect(),
        outputs: node.outputs.iter().map(|(port, kind)| (port.clone(), kind.into())).collect(),
        main_port: node.main_port.clone(),
        row_base,
        block_base,
        recall: job.recall,
        recall_blocks: job.recall_blocks(),
        on_error: node.spec.on_error,
        limit: job.limit(),
        directory: job.run.options.directory.clone(),
        threads: parts.threads,
        concurrency: parts.concurrency,
        processes: parts.processes,
        memory: parts.memory,
        gpus,
        retry: parts.retry,
        sources: job.parts.seen.seen().to_vec(),
    };
    serde_json::to_vec(&task).map_err(|error| OperatorError::engine(format!("the task cannot be written: {error}")))
}

/// How a task ended; or how the worker died before that, so that it may be started again.
type Ended = Result<Result<Ran, OperatorError>, OperatorError>;

/// A running worker.
struct Supervised<'a> {
    job: &'a NodeJob,
    lease: &'a DeviceLease,
    child: Child,
    orders: Option<ChildStdin>,
    told: Receiver<Message>,
    errors: Option<JoinHandle<VecDeque<String>>>,
    /// Memory in bytes, from the last heartbeat.
    memory: u64,
    started: Instant,
    heard: Instant,
    /// Whether it was ordered to drain.
    is_draining: bool,
    cancelling: Option<Instant>,
}

impl<'a> Supervised<'a> {
    fn start(job: &'a NodeJob, program: &Path, task: &Path, lease: &'a DeviceLease) -> Result<Self, OperatorError> {
        let mut command = Command::new(program);
        command.args(["worker", "exec", "--task"]).arg(task).env("CUDA_VISIBLE_DEVICES", lease.visible());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C in the terminal is handled by the parent.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| {
            OperatorError::machine(format!("cannot start the worker {}: {error}", program.display()))
        })?;
        let orders = child.stdin.take();
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(OperatorError::engine("the worker was started without pipes"));
        };
        let (sender, told) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // A library of the worker may print to its output, too.
                let Ok(message) = serde_json::from_str::<Message>(&line) else { continue };
                // Sending fails once the node is settled.
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut last = VecDeque::with_capacity(TAIL);
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if last.len() == TAIL {
                    last.pop_front();
                }
                last.push_back(line);
            }
            last
        });
        let (started, heard) = (Instant::now(), Instant::now());
        let (errors, memory, is_draining, cancelling) = (Some(errors), 0, false, None);
        Ok(Self { job, lease, child, orders, told, errors, memory, started, heard, is_draining, cancelling })
    }

    fn run(mut self) -> Ended {
        loop {
            match self.told.recv_timeout(LOOK) {
                Ok(message) => {
                    self.heard = Instant::now();
                    if let Some(outcome) = self.hear(message) {
                        // Closing its orders makes the worker exit.
                        self.orders.take();
                        self.leave();
                        return Ok(outcome);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.died(),
            }
            if !self.is_draining && self.job.run.stop.is_draining() {
                self.is_draining = true;
                self.order("drain");
            }
            if self.cancelling.is_none() && self.job.run.stop.is_cancelled() {
                self.cancelling = Some(Instant::now());
                self.order("cancel");
            }
            if let Some(error) = self.overdue() {
                // Only the worker can stop the processes it started.
                self.order("cancel");
                let mut tail = self.leave();
                if tail.is_empty() {
                    tail = self.kill();
                }
                let stopped = self.cancelling.is_some();
                let error = if stopped { OperatorError::cancelled() } else { with_tail(error, &tail) };
                return Ok(Err(error));
            }
        }
    }

    /// Handles a message; returns the outcome of the node if it was the last message.
    fn hear(&mut self, message: Message) -> Option<Result<Ran, OperatorError>> {
        let node = self.job.node().id().to_owned();
        match message {
            Message::Beat { memory } => self.memory = memory,
            Message::Progress { done, total, unit, cached } => {
                // Nodes that pay run in this process.
                let (calls, service_calls, tokens, cost) = (0, 0, 0, 0.0);
                let event = Event::NodeProgress { node, done, total, unit, cached, calls, service_calls, tokens, cost };
                self.job.run.reporter.event(&event);
            }
            Message::Log { line } => self.job.run.reporter.event(&Event::NodeLog { node, line }),
            Message::Done(done) => return Some(Ok(*done)),
            Message::Failed(error) => return Some(Err(error)),
        }
        None
    }

    /// Sends an order. Write errors are ignored: a worker that stopped reading exits when the pipe closes.
    fn order(&mut self, word: &str) {
        if let Some(pipe) = &mut self.orders {
            drop(writeln!(pipe, "{word}"));
        }
    }

    fn overdue(&self) -> Option<OperatorError> {
        if self.cancelling.is_some_and(|since| since.elapsed() > GRACE) {
            return Some(OperatorError::cancelled());
        }
        if let Some(limit) = self.job.node().spec.resources.timeout
            && self.started.elapsed() > limit
        {
            let message = format!("{} was stopped after {} s, its `timeout`", self.name(), limit.as_secs_f64());
            return Some(OperatorError::machine(message).with_help("raise the limit: `resources: {timeout: …}`"));
        }
        let wanted = self.job.run.options.asked.workers.silence;
        let silence = if wanted.is_zero() { SILENCE } else { wanted };
        if self.heard.elapsed() <= silence {
            return None;
        }
        let message = format!("{} hangs: nothing was heard of it for {} s", self.name(), silence.as_secs_f64());
        Some(OperatorError::machine(message))
    }

    fn name(&self) -> String {
        let (node, pid) = (self.job.node().id(), self.child.id());
        match self.lease.names() {
            devices if devices.is_empty() => format!("the worker of `{node}` (process {pid})"),
            devices => format!("the worker of `{node}` (process {pid}, {devices})"),
        }
    }

    /// Waits briefly for the worker to exit, then kills it and returns its last lines. Its task is settled.
    fn leave(&mut self) -> VecDeque<String> {
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return VecDeque::new();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.kill()
    }

    /// Kills the worker alone; what it started ends with its pipes. Returns its last lines, the first time.
    fn kill(&mut self) -> VecDeque<String> {
        // Fails harmlessly if the process has already exited.
        drop(self.child.kill());
        drop(self.child.wait());
        // The reader ends when the worker, and all that it started, have closed the pipe.
        self.errors.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }

    /// Handles a worker that closed its pipes without a final message.
    fn died(mut self) -> Ended {
        let ended = self.child.wait();
        let tail = self.errors.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        if self.job.run.stop.is_cancelled() {
            return Ok(Err(OperatorError::cancelled()));
        }
        let how = match &ended {
            Ok(status) => match status.signal() {
                Some(signal) => format!("was killed by signal {signal}"),
                None => format!("ended with exit code {} in the middle of its task", status.code().unwrap_or(-1)),
            },
            Err(error) => format!("ended in an unknown state: {error}"),
        };
        let mut help = None;
        if matches!(&ended, Ok(status) if status.signal() == Some(9)) {
            help = Some(KILLED);
        }
        if tail.iter().any(|line| line.contains("error while loading shared libraries")) {
            help = Some(UNLINKED);
        }
        let memory = self.memory >> 20;
        let error = OperatorError::machine(format!("{} {how}; it used {memory} MiB of memory", self.name()));
        let error = OperatorError { help: help.map(str::to_owned), ..error };
        Err(with_tail(error, &tail))
    }
}

fn with_tail(mut error: OperatorError, tail: &VecDeque<String>) -> OperatorError {
    if !tail.is_empty() {
        error.message += ". Its last lines:";
        for line in tail {
            error.message += &format!("\n  {line}");
        }
    }
    error
}
