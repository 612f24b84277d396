//! The worker's side: runs one task and reports line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indexmap::IndexMap;

use super::{CONTRACT, Message, WorkerTask};
use crate::endpoint::{EndpointSession, Redactor};
use crate::error::OperatorError;
use crate::events::{Event, Reporter};
use crate::execute::kernels::kernel_run::{KernelRun, WatchedPieces, unchanged};
use crate::execute::kernels::run_kernel;
use crate::execute::node::job::Ran;
use crate::execute::settings::Stop;
use crate::execute::settings::progress::NodeProgress;
use crate::fingerprint::SeenSources;
use crate::operator::{
    Context, ContextParts, Inputs, OperatorEntry, PortType, Registry, SecretLookup, SourceFiles, http_client,
    stack_size,
};
use crate::store::{Blocks, Store, StoreSink};

/// Interval between heartbeats.
const BEAT: Duration = Duration::from_secs(1);

/// The pipes between parent and worker.
pub struct WorkerPipes {
    /// Orders from the parent; end of file means that the parent is gone.
    pub orders: Box<dyn Read + Send>,
    /// Messages to the parent.
    pub told: Box<dyn Write + Send>,
    /// Ends the process immediately.
    pub leave: Box<dyn FnOnce() + Send>,
}

/// Runs the task in that file and reports the outcome, success or failure, to the parent.
///
/// # Errors
/// Fails if the task cannot be read; the parent then gets no message.
pub(crate) fn work(
    task: &Path,
    registry: &Registry,
    secrets: SecretLookup,
    pipes: WorkerPipes,
) -> Result<(), OperatorError> {
    let text = std::fs::read(task)?;
    let task: WorkerTask = serde_json::from_slice(&text)
        .map_err(|error| OperatorError::engine(format!("{} is not a task of this version: {error}", task.display())))?;
    let redactor = Redactor::of_environment();
    let parent = Arc::new(Parent { pipe: Mutex::new(pipes.told), redactor: redactor.clone() });
    let (stop, orders, beating) = (Stop::default(), pipes.orders, Arc::clone(&parent));
    let ordered = stop.clone();
    std::thread::spawn(move || {
        for order in BufReader::new(orders).lines().map_while(Result::ok) {
            match order.as_str() {
                "drain" => ordered.drain(),
                "cancel" => ordered.cancel(),
                _ => {}
            }
        }
        // The parent is gone, or has the result.
        (pipes.leave)();
    });
    std::thread::spawn(move || {
        loop {
            beating.send(&Message::Beat { memory: memory() });
            std::thread::sleep(BEAT);
        }
    });
    let message = match run(&task, registry, secrets, &stop, &parent) {
        Ok(ran) => Message::Done(Box::new(ran)),
        Err(mut error) => {
            redactor.clean_all(std::iter::once(&mut error.message).chain(&mut error.help));
            Message::Failed(error)
        }
    };
    parent.send(&message);
    Ok(())
}

/// The pipe to the parent.
struct Parent {
    pipe: Mutex<Box<dyn Write + Send>>,
    redactor: Redactor,
}

impl Parent {
    /// Sends a message. Write errors are ignored: the end of the orders shows that the parent is gone.
    fn send(&self, message: &Message) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        drop(pipe.write_all(&line).and_then(|()| pipe.flush()));
    }
}

impl Reporter for Parent {
    fn event(&self, event: &Event) {
        match event.clone() {
            Event::NodeProgress { done, total, unit, cached, .. } => {
                self.send(&Message::Progress { done, total, unit, cached });
            }
            Event::NodeLog { line, .. } => {
                self.send(&Message::Log { line: self.redactor.strike(&line).into_owned() });
            }
            _ => {}
        }
    }
}

/// Returns the resident memory of this process in bytes; 0 if unknown.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or_default() << 10
}

fn run(
    task: &WorkerTask,
    registry: &Registry,
    secrets: SecretLookup,
    stop: &Stop,
    parent: &Arc<Parent>,
) -> Result<Ran, OperatorError> {
    let entry = entry(task, registry)?;
    let operator = (entry.bind)(task.params.clone()).map_err(|issue| {
        OperatorError::engine(format!("the worker cannot read the param `{}`: {}", issue.path, issue.message))
    })?;
    let store = Store::open(&task.store)?;
    // The parent uses the store, too, but may die first.
    let _in_use = store.enter()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_stack_size(stack_size()).enable_all().build()?;
    let mut sink = StoreSink::new(&store, ports(task)?)
        .with_limit(task.limit)
        .with_programs(operator.declaration.runs_programs)
        .with_redactor(parent.redactor.clone());
    let sources = operator.declaration.sources(&task.directory);
    let sources = Arc::new(SeenSources::new(sources, task.sources.clone(), &task.directory));
    let pieces = Arc::new(store.pieces(&task.row_base, task.recall));
    let parts = ContextParts {
        seed: task.seed,
        cancelled: Arc::clone(&stop.cancelled),
        scratch: sink.scratch(),
        threads: task.threads,
        memory: task.memory,
        gpus: task.gpus,
        concurrency: task.concurrency,
        processes: task.processes,
        retry: task.retry,
        secrets,
        progress: Arc::new(NodeProgress::new(&task.node, Arc::clone(parent) as Arc<dyn Reporter>)),
        checkpoint: Arc::new(store.checkpoint(&task.key)),
        pieces: Arc::new(WatchedPieces { pieces, sources: Arc::clone(&sources) }),
        sources: Arc::clone(&sources) as Arc<dyn SourceFiles>,
        ..ContextParts::bare(&task.directory, runtime.handle(), http_client()?)
    };
    let session = EndpointSession { redactor: parent.redactor.clone(), ..EndpointSession::default() };
    let context = Context::new(parts).with_session(session).with_drain(Arc::clone(&stop.draining));
    let mut inputs = Inputs::new();
    for (port, artifact) in &task.inputs {
        inputs.bind(port, store.open_input(artifact)?);
    }
    // Without the journals of calls: nodes that call an endpoint never run in a worker.
    let run = KernelRun {
        inputs,
        main_port: task.main_port.clone(),
        row_base: task.row_base,
        block_base: task.block_base,
        recall_blocks: task.recall_blocks,
        on_error: task.on_error,
        ..KernelRun::new(context, &store, Arc::clone(&sources))
    };
    let ran = run_kernel(&operator, &operator.declaration, &run, &mut sink);
    let computed = run.context.computed();
    drop(run);
    // Does not wait for threads that still compute after an order to stop.
    runtime.shutdown_background();
    // Before a failure counts: it may come from a half-written file.
    unchanged(&sources, &operator, &task.directory)?;
    let rows = ran?;
    if rows.stopped {
        return Err(OperatorError::cancelled());
    }
    let mut written = sink.commit()?;
    let blocks = std::mem::take(&mut written.blocks);
    if !blocks.is_empty() {
        Blocks::open(&store, &rows.memo.unwrap_or(task.block_base), true)?.keep(&blocks)?;
    }
    Ok(Ran { written, rows, computed })
}

fn entry(task: &WorkerTask, registry: &Registry) -> Result<OperatorEntry, OperatorError> {
    let help = "build the worker from the same source as `searchmill`";
    if task.contract != CONTRACT {
        let message = format!("the worker has protocol version {CONTRACT}, `searchmill` has {}", task.contract);
        return Err(OperatorError::machine(message).with_help(help));
    }
    let ours = registry.get(&task.operator);
    if let Some(entry) = ours.filter(|entry| entry.version == task.version) {
        return Ok(*entry);
    }
    let ours = ours.map_or("none".to_owned(), |entry| entry.version.to_string());
    let message = format!("the task needs `{}` version {}, the worker has {ours}", task.operator, task.version);
    Err(OperatorError::machine(message).with_help(help))
}

fn ports(task: &WorkerTask) -> Result<IndexMap<String, PortType>, OperatorError> {
    let mut ports = IndexMap::new();
    for (port, kind) in &task.outputs {
        let Some(port_type) = kind.port_type() else {
            return Err(OperatorError::engine(format!("the worker does not know the kind of output `{port}`")));
        };
        ports.insert(port.clone(), port_type);
    }
    Ok(ports)
}
