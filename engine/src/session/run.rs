//! Runs a checked pipeline, or an operator outside of a run.

use std::path::Path;
use std::sync::Arc;

use super::failure::Failure;
use super::open::Session;
use super::options::budget;
use super::pipeline::Pipeline;
use super::preflight::with_devices;
use crate::error::{Blame, OperatorError};
use crate::events::{Reporter, RunSummary};
use crate::execute::{Machine, RunOptions, Settings, Stop, run};
use crate::lineage::openlineage::{Emitter, Job, JobInput, Pipeline as Jobs};
use crate::operator::{Context, ContextParts, Source, http_client, stack_size};
use crate::plan::{Input, Plan};
use crate::store::Store;

/// A run that passed all checks and has not started.
pub struct PreparedRun {
    plan: Arc<Plan>,
    store: Store,
    settings: Settings,
}

impl PreparedRun {
    /// Returns the folder of the store, or of its local copy.
    pub fn store_root(&self) -> &Path {
        self.store.root()
    }

    /// Returns an emitter that converts the run's events to OpenLineage events.
    pub fn emitter(&self, namespace: String) -> Emitter {
        let (plan, directory) = (&self.plan, self.settings.directory.clone());
        let mut jobs = Vec::with_capacity(plan.nodes.len());
        for node in &plan.nodes {
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for Input { port, node: from, output, .. } in &node.inputs {
                inputs.push(JobInput { port: port.clone(), node: plan[*from].id().to_owned(), output: output.clone() });
            }
            jobs.push(Job {
                node: node.id().to_owned(),
                operator: node.entry.name.to_owned(),
                version: node.version(),
                params: node.identity_params.clone(),
                about: node.entry.about.to_owned(),
                inputs,
                sources: node.sources.iter().filter_map(path).collect(),
            });
        }
        let (name, file) = (plan.name.clone(), plan.file.clone());
        Emitter::new(self.store.clone(), Jobs { name, file, directory, namespace, jobs })
    }

    /// Runs on the current tokio runtime, which needs several threads, I/O and time, and stacks of
    /// [`stack_size`](crate::operator::stack_size) bytes for deeply nested SQL. [`Stop::drain`] and [`Stop::cancel`] end
    /// the run; no signal handler is installed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use searchmill_engine::{Failure, Lines, Pipeline, RunOptions, RunSummary, Session, Stop, operator::stack_size};
    /// # fn example(session: &Session, pipeline: &Pipeline) -> Result<RunSummary, Failure> {
    /// let prepared = session.prepare(pipeline, RunOptions::default())?;
    /// let stop = Stop::default();
    /// let reporter = Arc::new(Lines(|line: &str| println!("{line}")));
    /// let mut runtime = tokio::runtime::Builder::new_multi_thread();
    /// let runtime = runtime.enable_all().thread_stack_size(stack_size()).build()?;
    /// runtime.block_on(prepared.run(reporter, stop.clone())) // elsewhere: `stop.drain()`
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the store cannot be used. Failed nodes are no error: the summary counts them, [`Event::NodeFailed`] and
    /// [`RunsView::nodes`] have their messages.
    ///
    /// [`Event::NodeFailed`]: crate::Event::NodeFailed
    /// [`RunsView::nodes`]: crate::RunsView::nodes
    pub async fn run(self, reporter: Arc<dyn Reporter>, stop: Stop) -> Result<RunSummary, Failure> {
        Ok(run(self.plan, self.store, self.settings, reporter, stop).await?)
    }
}

impl Session {
    /// Runs a pipeline to its end on a separate runtime. It cannot be stopped from outside, and installs no signal
    /// handler: a Ctrl-C ends the program, and the next run resumes. To stop a run yourself, and in code that already
    /// runs on tokio, where this would panic, use [`Session::prepare`] and [`PreparedRun::run`].
    ///
    /// # Errors
    /// Fails as [`Session::prepare`] does. Failed nodes are no error: see [`PreparedRun::run`].
    pub fn run(
        &self,
        pipeline: &Pipeline,
        options: RunOptions,
        reporter: impl Reporter + 'static,
    ) -> Result<RunSummary, Failure> {
        let prepared = self.prepare(pipeline, options)?;
        runtime()?.block_on(prepared.run(Arc::new(reporter), Stop::default()))
    }

    /// Makes all checks before a run: destinations, budget, selected nodes, GPUs, secrets.
    ///
    /// # Errors
    /// Fails if a check fails, or if the store cannot be used.
    pub fn prepare(&self, pipeline: &Pipeline, options: RunOptions) -> Result<PreparedRun, Failure> {
        let plan = &pipeline.plan;
        self.check_destinations(pipeline)?;
        // What needs no store comes first: a run that is refused for it creates none.
        let budget = budget(plan, &options)?;
        let chosen = self.chosen(plan, &options)?;
        let store = self.create()?.clone();
        let workers = with_devices(&options.workers, plan)?;
        let request = chosen.request(self.directory(), &options);
        let fits = self.preflight(pipeline, &workers, &store, &chosen, request)?;
        let machine = Machine { gpus: workers.devices.len() as u32, ..Machine::detect() };
        let settings = Settings {
            asked: RunOptions { budget, workers, ..options },
            chosen,
            directory: self.directory().to_owned(),
            machine,
            secrets: Arc::clone(&self.secrets),
            fits,
            trial: None,
        };
        Ok(PreparedRun { plan: Arc::clone(plan), store, settings })
    }

    /// Calls `work` with the context of an operator: all threads, no seed, no secrets. Not for code that already runs
    /// on tokio.
    ///
    /// # Errors
    /// Fails if `work` does.
    pub fn with_context<T>(&self, work: impl FnOnce(&Context) -> Result<T, OperatorError>) -> Result<T, Failure> {
        let runtime = runtime()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let bare = ContextParts::bare(self.directory(), runtime.handle(), http_client()?);
        match work(&Context::new(ContextParts { threads, ..bare })) {
            // Params of a command or of the page, not of a pipeline: the caller can mend them.
            Err(error) if error.blame == Blame::Pipeline => {
                Err(Failure::Usage { message: error.message, help: error.help })
            }
            answer => Ok(answer?),
        }
    }
}

/// Creates a runtime for one call.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().thread_stack_size(stack_size()).enable_all().build()?)
}

fn path(source: &Source) -> Option<String> {
    match source {
        Source::Path(path) | Source::Argument(path) | Source::Data { path, .. } | Source::Named { path, .. } => {
            Some(path.clone())
        }
        Source::Fetched { path, .. } => Some(path.display().to_string()),
        Source::Optional(_)
        | Source::Identity(_)
        | Source::Awaited { .. }
        | Source::Program(_)
        | Source::Executable(_) => None,
    }
}
