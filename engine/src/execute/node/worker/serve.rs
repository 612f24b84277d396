//! The worker's side: runs one task and reports line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indexmap::IndexMap;

use super::contract::{CONTRACT, Message, Task};
use crate::endpoint::{EndpointSession, Redactor};
use crate::error::OperatorError;
use crate::events::{Event, Reporter};
use crate::execute::kernels::changed_sources::{WatchedPieces, unchanged};
use crate::execute::kernels::kernel_run::KernelRun;
use crate::execute::kernels::observations::Observations;
use crate::execute::kernels::run_kernel;
use crate::execute::node::job::Ran;
use crate::execute::settings::progress::NodeProgress;
use crate::execute::settings::stop::Stop;
use crate::fingerprint::SeenSources;
use crate::operator::{
    Context, ContextParts, Inputs, OperatorEntry, PortType, ProgressSink, Registry, SecretLookup, SourceFiles,
    http_client, stack_size,
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
    let unknown = |error| OperatorError::engine(format!("{} is not a task of this version: {error}", task.display()));
    let task: Task = serde_json::from_slice(&text).map_err(unknown)?;
    let redactor = Redactor::of_environment();
    let parent = Arc::new(Parent { pipe: Mutex::new(pipes.told), redactor: redactor.clone() });
    let stop = Stop::default();
    listen(pipes.orders, pipes.leave, stop.clone());
    beat(&parent);
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

fn listen(orders: Box<dyn Read + Send>, leave: Box<dyn FnOnce() + Send>, stop: Stop) {
    std::thread::spawn(move || {
        for order in BufReader::new(orders).lines().map_while(Result::ok) {
            match order.as_str() {
                "drain" => stop.drain(),
                "cancel" => stop.cancel(),
                _ => {}
            }
        }
        leave();
    });
}

fn beat(parent: &Arc<Parent>) {
    let parent = Arc::clone(parent);
    std::thread::spawn(move || {
        loop {
            parent.send(&Message::Beat { memory: memory() });
            std::thread::sleep(BEAT);
        }
    });
}

/// Returns the resident memory of this process in bytes; 0 if unknown.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or_default() << 10
}

fn run(
    task: &Task,
    registry: &Registry,
    secrets: SecretLookup,
    stop: &Stop,
    parent: &Arc<Parent>,
) -> Result<Ran, OperatorError> {
    let entry = entry(task, registry)?;
    let bind = |issue: crate::operator::ParamIssue| {
        OperatorError::engine(format!("the worker cannot read the param `{}`: {}", issue.path, issue.message))
    };
    let operator = (entry.bind)(task.params.clone()).map_err(bind)?;
    let store = Store::open(&task.store)?;
    let _in_use = store.enter()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_stack_size(stack_size()).enable_all().build()?;
    let mut sink = StoreSink::new(&store, ports(task)?)
        .with_limit(task.limit)
        .with_programs(operator.declaration.runs_programs)
        .with_redactor(parent.redactor.clone());
    let sources = operator.declaration.sources(&task.directory);
    let sources = Arc::new(SeenSources::new(sources, task.sources.clone(), &task.directory));
    let pieces = Arc::new(store.pieces(&task.row_base, task.recall));
    let progress = Arc::new(NodeProgress::new(&task.node, Arc::clone(parent) as Arc<dyn Reporter>));
    let parts = ContextParts {
        seed: task.seed,
        cancelled: stop.flag(),
        scratch: sink.scratch(),
        threads: task.threads,
        memory: task.memory,
        gpus: task.gpus,
        concurrency: task.concurrency,
        processes: task.processes,
        retry: task.retry,
        secrets,
        progress: Arc::clone(&progress) as Arc<dyn ProgressSink>,
        checkpoint: Arc::new(store.checkpoint(&task.key)),
        pieces: Arc::new(WatchedPieces { pieces, sources: Arc::clone(&sources) }),
        sources: Arc::clone(&sources) as Arc<dyn SourceFiles>,
        ..ContextParts::bare(&task.directory, runtime.handle(), http_client()?)
    };
    let session = EndpointSession { redactor: parent.redactor.clone(), ..EndpointSession::default() };
    let context = Context::new(parts).with_session(session).with_drain(stop.drain_flag());
    let run = kernel_run(task, &store, context, stop, progress, Arc::clone(&sources))?;
    let ran = run_kernel(&operator, &operator.declaration, &run, &mut sink);
    let computed = run.context.computed();
    drop(run);
    // Does not wait for threads that still compute after an order to stop.
    runtime.shutdown_background();
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

fn entry(task: &Task, registry: &Registry) -> Result<OperatorEntry, OperatorError> {
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

fn ports(task: &Task) -> Result<IndexMap<String, PortType>, OperatorError> {
    let known = |(port, kind): (&String, &crate::store::ArtifactType)| {
        let unknown = || OperatorError::engine(format!("the worker does not know the kind of output `{port}`"));
        Ok((port.clone(), kind.port_type().ok_or_else(unknown)?))
    };
    task.outputs.iter().map(known).collect()
}

fn kernel_run(
    task: &Task,
    store: &Store,
    context: Context,
    stop: &Stop,
    progress: Arc<NodeProgress>,
    sources: Arc<SeenSources>,
) -> Result<KernelRun, OperatorError> {
    let mut inputs = Inputs::new();
    for (port, artifact) in &task.inputs {
        inputs.bind(port, store.open_input(artifact)?);
    }
    Ok(KernelRun {
        inputs,
        main_port: task.main_port.clone(),
        context,
        row_base: task.row_base,
        block_base: task.block_base,
        recall_blocks: task.recall_blocks,
        on_error: task.on_error,
        finishes: false,
        stop: stop.clone(),
        progress,
        store: store.clone(),
        // Nodes that call an endpoint never run in a worker.
        calls: None,
        observed: Observations::default(),
        sources,
    })
}
