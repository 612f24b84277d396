//! The driver: feeds the scheduler, looks results up, runs kernels, commits, records. Decisions are the scheduler's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::endpoints::Endpoints;
use super::identity::{Known, Parts};
use super::node::{NodeDone, NodeJob, run_node};
use super::recorded::Recorded;
use super::resolve::{Lookup, Retry, damage_reason, lookup, reasons};
use super::resources::{Demand, Machine, Pool};
use super::run_id::{after_all, run_id};
use super::scheduler::{Command, Event as Step, Scheduler, Task};
pub use super::stop::Stop;
use super::survey::is_frozen;
use super::versions::version;
use super::worker::Workers;
use crate::fingerprint::{NodeKey, Reason, SourceDigests, SourceProblem};
use crate::operator::{Blame, Budget, Context, OperatorError, SecretLookup, Usage};
use crate::plan::{Node, Plan};
use crate::report::{Event, Reporter, RunSummary};
use crate::store::{
    Damage, NodeOutcome, NodeResult, NodeRun, OutputRecord, RunRecord, RunWriter, Store, StoreError, StoreUse,
};

/// How to run.
#[derive(Clone)]
pub struct RunOptions {
    /// Nodes at once.
    pub jobs: usize,
    /// After a failure, run what does not depend on it.
    pub keep_going: bool,
    /// Run these nodes even if their result is known (`*`: all).
    pub force: BTreeSet<String>,
    /// Look nothing up (results are still recorded).
    pub no_cache: bool,
    /// Rows that a source gives at most.
    pub limit: Option<u64>,
    /// Places of the nodes to run; others are only looked up.
    pub selected: BTreeSet<usize>,
    /// Relative paths start here.
    pub directory: PathBuf,
    /// What the machine has.
    pub machine: Machine,
    /// Programs and devices for nodes in processes of their own.
    pub workers: Workers,
    /// Looks secrets up.
    pub secrets: SecretLookup,
    /// What calls to endpoints may cost; used up, the run stops, and the next one goes on.
    pub budget: Budget,
    /// Try rows again, too, that `on_error: drop` passed over.
    pub retry_dropped: bool,
}

impl RunOptions {
    pub(super) fn retry(&self) -> Retry {
        if self.retry_dropped { Retry::Dropped } else { Retry::Failed }
    }
}

/// Runs a plan.
///
/// # Errors
/// When the store cannot be used; failures of nodes are in the summary.
pub async fn run(
    plan: Arc<Plan>,
    store: Store,
    options: RunOptions,
    reporter: Arc<dyn Reporter>,
    stop: Stop,
) -> Result<RunSummary, StoreError> {
    let (sender, receiver) = unbounded_channel();
    let mut driver = Driver::new(plan, store, options, reporter, stop, sender)?;
    let watch = driver.endpoints.watch(Arc::clone(&driver.reporter));
    let outcome = driver.drive(receiver).await;
    if let Some(watch) = watch {
        watch.abort();
    }
    driver.finish(outcome)
}

/// Seconds since 1970.
#[must_use]
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

struct Driver {
    plan: Arc<Plan>,
    store: Store,
    options: RunOptions,
    /// The chosen nodes and all that stand before them: nobody asks for the others.
    wanted: BTreeSet<usize>,
    reporter: Arc<dyn Reporter>,
    stop: Stop,
    done: UnboundedSender<NodeDone>,
    known: Known,
    sources: SourceDigests,
    last: Option<BTreeMap<String, NodeRun>>,
    record: RunRecord,
    ledger: Arc<Mutex<RunWriter>>,
    summary: RunSummary,
    spent_nanos: u64,
    start: Instant,
    http: reqwest::Client,
    endpoints: Endpoints,
    /// Nothing that this run may use is collected.
    _in_use: StoreUse,
    /// Nodes that had their result and make it again because it was found damaged, each with the nodes that wait for it.
    remaking: BTreeMap<usize, Vec<usize>>,
    /// How often nodes ran whose sources changed while they were read.
    unsettled: BTreeMap<usize, u32>,
}

/// How often a node runs whose sources change while they are read.
const READINGS: u32 = 3;

impl Driver {
    fn new(
        plan: Arc<Plan>,
        store: Store,
        options: RunOptions,
        reporter: Arc<dyn Reporter>,
        stop: Stop,
        done: UnboundedSender<NodeDone>,
    ) -> Result<Self, StoreError> {
        let in_use = store.enter()?;
        let started = unix_time();
        let wanted = with_all_before(&plan, &options.selected);
        let record = RunRecord {
            id: run_id(after_all(&store, started)),
            pipeline: plan.name().to_owned(),
            file: plan.file().display().to_string(),
            params: plan.params().clone(),
            set: plan.overrides().set.clone(),
            params_files: plan.overrides().params_files.clone(),
            limit: options.limit,
            started,
            finished: None,
            exit: None,
            nodes: wanted.len(),
        };
        let told = stop.clone();
        let sources = SourceDigests::new(store.known_sources(), version).until(move || told.is_draining());
        let writer = store.start_run(&record)?;
        let currency = plan.currency().unwrap_or_default();
        let summary = RunSummary { run: record.id.clone(), currency, ..RunSummary::default() };
        let endpoints = Endpoints::new(&plan, options.budget);
        let ledger = Arc::new(Mutex::new(writer));
        let (known, last, start) = (Known::new(), None, Instant::now());
        let reporter: Arc<dyn Reporter> = Arc::new(Recorded { inner: reporter, ledger: Arc::clone(&ledger) });
        let http = reqwest::Client::builder().pool_max_idle_per_host(usize::MAX).build();
        let http = http.map_err(|error| StoreError::Location(format!("no HTTP client can be made: {error}")))?;
        Ok(Self {
            plan,
            store,
            options,
            wanted,
            reporter,
            stop,
            done,
            known,
            sources,
            last,
            record,
            ledger,
            summary,
            spent_nanos: 0,
            start,
            http,
            endpoints,
            _in_use: in_use,
            remaking: BTreeMap::new(),
            unsettled: BTreeMap::new(),
        })
    }

    async fn drive(&mut self, mut receiver: UnboundedReceiver<NodeDone>) -> Result<(), StoreError> {
        let (run, pipeline) = (self.record.id.clone(), self.record.pipeline.clone());
        self.reporter.event(&Event::RunStarted { run, pipeline, nodes: self.record.nodes, time: self.record.started });
        let mut scheduler = self.scheduler();
        let mut commands = scheduler.start();
        let mut told = false;
        loop {
            // Cached nodes settle at once and may free others: go on until nothing more follows.
            while let Some(command) = commands.pop() {
                match command {
                    Command::Launch(place) => {
                        if let Some(step) = self.launch(place)? {
                            commands.extend(scheduler.step(step));
                        }
                    }
                    Command::Skip(place) => self.skip(place)?,
                }
            }
            if scheduler.is_done() {
                return Ok(());
            }
            let notified = Arc::clone(&self.stop.notify);
            tokio::select! {
                Some(done) = receiver.recv() => {
                    for step in self.settled(done)? {
                        commands.extend(scheduler.step(step));
                    }
                }
                () = notified.notified(), if !told => {}
            }
            if self.stop.is_draining() && !told {
                told = true;
                self.summary.interrupted = true;
                commands.extend(scheduler.step(Step::Stop));
            }
        }
    }

    fn scheduler(&self) -> Scheduler {
        let task = |(place, node): (usize, &Node)| Task {
            dependents: self.plan.dependents(place),
            dependencies: self.plan.dependencies(place).len(),
            demand: Demand {
                gpus: self.options.workers.gpus(&node.spec.resources),
                memory: node.spec.resources.memory.unwrap_or_default(),
            },
        };
        let tasks = self.plan.nodes().iter().enumerate().map(task).collect();
        Scheduler::new(tasks, Pool::new(self.options.jobs, &self.options.machine), self.options.keep_going)
    }

    /// Settles a node from the store, or starts it; gives the step when it settled at once.
    fn launch(&mut self, place: usize) -> Result<Option<Step>, StoreError> {
        if !self.wanted.contains(&place) {
            return Ok(Some(Step::Succeeded(place)));
        }
        let plan = Arc::clone(&self.plan);
        let node = &plan.nodes()[place];
        if let Some((key, outputs)) = self.frozen(node) {
            return self.cached(place, key, outputs).map(Some);
        }
        let parts = match self.parts(node) {
            Ok(parts) => parts,
            Err(error) if error.blame == Blame::Cancelled => return self.passed_over(place).map(Some),
            Err(error) => return self.fail(place, &error).map(Some),
        };
        let (key, preimage) = parts.key(node);
        let forced = self.options.force.contains(node.id()) || self.options.force.contains("*");
        let selected = self.options.selected.contains(&place);
        let mut why = Vec::new();
        if selected && forced {
            why.push(Reason::Forced);
        } else if selected && self.options.no_cache {
            why.push(Reason::CacheOff);
        } else {
            match self.look_up(place, &key, selected)? {
                Lookup::Hit(result) => return self.cached(place, Some(key), result.outputs).map(Some),
                Lookup::Miss(found) => why.extend(found),
            }
        }
        if let Err(error) = self.store.sound() {
            return self.fail(place, &error.into()).map(Some);
        }
        if !selected {
            let error = OperatorError::pipeline("it was not chosen to run, and its result is not in the store");
            return self.fail(place, &error.with_help("run it first, or leave out --from and --only")).map(Some);
        }
        if why.is_empty() {
            let last = self.last_run().get(node.id()).cloned();
            why = reasons(&self.store, last.as_ref(), &key, &preimage);
        }
        // What was found cached so far is seen to be in use.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).flush()?;
        self.start_node(place, parts, why);
        Ok(None)
    }

    /// Looks a key up. What is handed over at once must be whole, and what was found damaged a moment ago is not believed.
    fn look_up(&self, place: usize, key: &NodeKey, selected: bool) -> Result<Lookup, StoreError> {
        let node = &self.plan.nodes()[place];
        let retry = if selected { self.options.retry() } else { Retry::Nothing };
        let found = lookup(&self.store, node, key, retry);
        let Lookup::Hit(result) = &found else { return Ok(found) };
        for (port, output) in &result.outputs {
            let handed_over = matches!(node.outputs.get(port), Some(crate::operator::PortType::Tree(_)));
            if (handed_over || self.remaking.contains_key(&place))
                && let Err(damage) = self.store.fetch(&output.id)?
            {
                return Ok(Lookup::Miss(vec![damage_reason(port, damage)]));
            }
        }
        Ok(found)
    }

    /// What the node's key is made of; files that it fetches are fetched for that.
    fn parts(&mut self, node: &Node) -> Result<Parts, OperatorError> {
        let mut gathered = self.gather(node);
        if matches!(gathered, Err(SourceProblem::NotFetched { .. })) {
            let context = self.context(node);
            tokio::task::block_in_place(|| node.operator.fetch(&context))?;
            gathered = self.gather(node);
        }
        match gathered {
            Ok(Some(parts)) => Ok(parts),
            Ok(None) => Err(OperatorError::engine("its inputs are not known")),
            Err(SourceProblem::Stopped) if self.stop.is_draining() => Err(OperatorError::cancelled()),
            Err(SourceProblem::Stopped) => {
                Err(OperatorError::machine("a source cannot be read: the file system timed out"))
            }
            Err(problem) => Err(OperatorError::pipeline(problem.to_string())),
        }
    }

    fn gather(&mut self, node: &Node) -> Result<Option<Parts>, SourceProblem> {
        let (directory, limit) = (&self.options.directory, self.options.limit);
        Parts::gather(node, &self.known, &mut self.sources, directory, limit)
    }

    /// For work outside the node's own run.
    fn context(&self, node: &Node) -> Context {
        super::node::bare_context(node, &self.options, &self.reporter, &self.stop, &self.store, &self.http)
    }

    fn start_node(&self, place: usize, parts: Parts, why: Vec<Reason>) {
        let recall = !why.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
        let inputs = self.plan.nodes()[place].inputs.iter();
        let inputs = inputs.filter_map(|input| self.known.get(&input.node)?.get(&input.output).cloned()).collect();
        let job = NodeJob {
            plan: Arc::clone(&self.plan),
            place,
            parts,
            inputs,
            reasons: why,
            recall,
            store: self.store.clone(),
            options: self.options.clone(),
            reporter: Arc::clone(&self.reporter),
            stop: self.stop.clone(),
            run: self.record.id.clone(),
            http: self.http.clone(),
            outside: self.endpoints.outside(&self.plan.nodes()[place]),
        };
        let done = self.done.clone();
        tokio::spawn(async move {
            // The receiver is gone only when the run has already failed.
            drop(done.send(run_node(job).await));
        });
    }

    /// What a frozen node gave last, and its key of then, so that later runs find it again.
    fn frozen(&mut self, node: &Node) -> Option<(Option<NodeKey>, IndexMap<String, OutputRecord>)> {
        if !node.spec.freeze {
            return None;
        }
        let last = self.last_run().get(node.id())?.clone();
        is_frozen(node, &last, &self.store).then_some((last.key, last.outputs))
    }

    fn last_run(&mut self) -> &BTreeMap<String, NodeRun> {
        let (store, plan, own) = (&self.store, &self.plan, &self.record.id);
        self.last.get_or_insert_with(|| last_nodes(store, plan, own))
    }

    fn cached(
        &mut self,
        place: usize,
        key: Option<NodeKey>,
        outputs: IndexMap<String, OutputRecord>,
    ) -> Result<Step, StoreError> {
        let plan = Arc::clone(&self.plan);
        let node = &plan.nodes()[place];
        if let Err(error) = self.deliver(place, &outputs) {
            return self.fail(place, &error);
        }
        self.summary.cached += 1;
        let (output, rows, bytes) = default_output(node, &outputs);
        let rejects = outputs.get("rejects").map_or(0, |output| output.rows);
        let (id, operator) = (node.id().to_owned(), node.entry.name.to_owned());
        self.reporter.event(&Event::NodeCached { node: id, operator, output, rows, bytes, rejects, key });
        self.note(place, key, NodeOutcome::Cached, Vec::new(), outputs.clone(), None, 0.0)?;
        self.known.insert(place, outputs);
        Ok(Step::Succeeded(place))
    }

    fn deliver(&self, place: usize, outputs: &IndexMap<String, OutputRecord>) -> Result<(), OperatorError> {
        let node = &self.plan.nodes()[place];
        if !node.outputs.values().any(|port| matches!(port, crate::operator::PortType::Tree(_))) {
            return Ok(());
        }
        let context = self.context(node);
        // Remote destinations wait for the network.
        let deliver = || super::deliver::deliver(node, outputs, &self.store, &context);
        let delivered = tokio::task::block_in_place(deliver)?;
        for destination in delivered {
            self.reporter.event(&Event::Delivered { node: node.id().to_owned(), destination });
        }
        Ok(())
    }

    /// What the end of a node means for the scheduler. A node that was made again counts as done there already: what
    /// waited for it goes on.
    fn settled(&mut self, done: NodeDone) -> Result<Vec<Step>, StoreError> {
        let place = done.place;
        if let Some((input, damage)) = done.damaged {
            return self.remake(place, input, damage);
        }
        if matches!(&done.outcome, Err(error) if error.blame == Blame::Changed) {
            return self.read_again(done);
        }
        let step = self.settle(done)?;
        self.go_on(place, step)
    }

    /// A source changed while the node read it: nothing was recorded, and the node runs again, under the key of what is
    /// there now.
    fn read_again(&mut self, mut done: NodeDone) -> Result<Vec<Step>, StoreError> {
        let (place, node) = (done.place, self.plan.nodes()[done.place].id().to_owned());
        let Err(error) = &mut done.outcome else { return Ok(Vec::new()) };
        let count = self.unsettled.entry(place).or_default();
        *count += 1;
        if *count >= READINGS {
            let message = format!("{}, {READINGS} times in a row: nothing was recorded", error.message);
            let help = "run it again once nothing writes there; if the program itself does, name that file or folder in `writes`";
            *error = OperatorError::machine(message).with_help(help);
            let step = self.settle(done)?;
            return self.go_on(place, step);
        }
        let line = format!("{}: nothing was recorded, the node runs again", error.message);
        self.reporter.event(&Event::NodeLog { node, line });
        self.count(&done.spent);
        match self.launch(place)? {
            None => Ok(Vec::new()),
            Some(step) => self.go_on(place, step),
        }
    }

    /// The run was told to stop before the node's key was known.
    fn passed_over(&mut self, place: usize) -> Result<Step, StoreError> {
        self.summary.interrupted = true;
        self.skip(place)?;
        Ok(Step::Failed(place))
    }

    /// After a node has come to its end: the nodes that waited until it was made again.
    fn go_on(&mut self, place: usize, step: Step) -> Result<Vec<Step>, StoreError> {
        let Some(waiting) = self.remaking.remove(&place) else { return Ok(vec![step]) };
        let mut steps = Vec::new();
        for waits in waiting {
            let next = match step {
                Step::Succeeded(_) => self.launch(waits)?,
                _ => Some(
                    self.fail(waits, &OperatorError::machine("an input was damaged, and could not be made again"))?,
                ),
            };
            // It may be one that is made again itself.
            if let Some(next) = next {
                steps.extend(self.go_on(waits, next)?);
            }
        }
        Ok(steps)
    }

    /// Makes the node behind a damaged input again, and the node that needs it after that.
    fn remake(&mut self, place: usize, input: usize, damage: Damage) -> Result<Vec<Step>, StoreError> {
        let plan = Arc::clone(&self.plan);
        let from = &plan.nodes()[place].inputs[input];
        tracing::warn!("an output of `{}` is damaged ({damage:?}): it is made again", plan.nodes()[from.node].id());
        let waiting = self.remaking.entry(from.node).or_default();
        waiting.push(place);
        if waiting.len() > 1 {
            return Ok(Vec::new());
        }
        match self.launch(from.node)? {
            None => Ok(Vec::new()),
            Some(step) => self.go_on(from.node, step),
        }
    }

    fn settle(&mut self, done: NodeDone) -> Result<Step, StoreError> {
        let place = done.place;
        self.count(&done.spent);
        match done.outcome {
            Err(error) if error.blame == Blame::Cancelled => {
                self.tell_budget();
                self.summary.skipped += 1;
                let node = self.plan.nodes()[place].id().to_owned();
                self.reporter.event(&Event::NodeSkipped { node });
                let why = done.reasons;
                self.note(place, Some(done.key), NodeOutcome::Skipped, why, IndexMap::new(), None, done.seconds)?;
                Ok(Step::Failed(place))
            }
            Err(error) => {
                let (key, why) = (Some(done.key), done.reasons);
                self.fail_with(place, &error, key, why, done.seconds)
            }
            Ok(result) if done.reused => self.cached(place, Some(result.key), result.outputs),
            Ok(result) => self.finished(place, &result, done.reasons, done.cached_rows),
        }
    }

    fn count(&mut self, spent: &Usage) {
        self.summary.calls += spent.calls;
        self.summary.prompt_tokens += spent.prompt_tokens;
        self.summary.completion_tokens += spent.completion_tokens;
        self.spent_nanos += spent.cost_nanos;
        self.summary.cost = Usage { cost_nanos: self.spent_nanos, ..Usage::default() }.cost();
    }

    /// Once: that the budget is used up.
    fn tell_budget(&mut self) {
        if let Some(limit) = self.endpoints.purse.refused().filter(|_| self.summary.budget.is_none()) {
            self.reporter.event(&Event::BudgetUsedUp { limit: limit.clone() });
            self.summary.budget = Some(limit);
        }
    }

    fn finished(
        &mut self,
        place: usize,
        result: &NodeResult,
        why: Vec<Reason>,
        cached_rows: u64,
    ) -> Result<Step, StoreError> {
        if let Err(error) = self.deliver(place, &result.outputs) {
            return self.fail(place, &error);
        }
        let plan = Arc::clone(&self.plan);
        let node = &plan.nodes()[place];
        self.summary.finished += 1;
        if node.entry.effect == crate::operator::Effect::External {
            self.summary.dead_letters += result.rejects();
        } else {
            self.summary.rejects += result.rejects();
        }
        let (output, rows, bytes) = default_output(node, &result.outputs);
        self.reporter.event(&Event::NodeFinished {
            output,
            bytes,
            node: node.id().to_owned(),
            operator: node.entry.name.to_owned(),
            rows,
            rejects: result.rejects(),
            key: result.key,
            cached_rows,
            calls: result.calls,
            prompt_tokens: result.prompt_tokens,
            completion_tokens: result.completion_tokens,
            cost: result.usage().cost(),
            seconds: result.seconds,
            summary: result.summary.clone(),
        });
        let outputs = result.outputs.clone();
        self.note(place, Some(result.key), NodeOutcome::Finished, why, outputs.clone(), None, result.seconds)?;
        self.known.insert(place, outputs);
        Ok(Step::Succeeded(place))
    }

    fn fail(&mut self, place: usize, error: &OperatorError) -> Result<Step, StoreError> {
        self.fail_with(place, error, None, Vec::new(), 0.0)
    }

    fn fail_with(
        &mut self,
        place: usize,
        error: &OperatorError,
        key: Option<NodeKey>,
        why: Vec<Reason>,
        seconds: f64,
    ) -> Result<Step, StoreError> {
        self.summary.failed += 1;
        self.summary.machine_failure |= error.blame == Blame::Machine;
        let node = &self.plan.nodes()[place];
        let (id, operator) = (node.id().to_owned(), node.entry.name.to_owned());
        let (message, help) = (error.message.clone(), error.help.clone());
        self.reporter.event(&Event::NodeFailed { node: id, operator, message, help });
        let text = Some(error.message.clone());
        self.note(place, key, NodeOutcome::Failed, why, IndexMap::new(), text, seconds)?;
        Ok(Step::Failed(place))
    }

    fn skip(&mut self, place: usize) -> Result<(), StoreError> {
        if !self.wanted.contains(&place) {
            return Ok(());
        }
        self.summary.skipped += 1;
        self.reporter.event(&Event::NodeSkipped { node: self.plan.nodes()[place].id().to_owned() });
        self.note(place, None, NodeOutcome::Skipped, Vec::new(), IndexMap::new(), None, 0.0)
    }

    #[expect(clippy::too_many_arguments, reason = "one record, written in one place")]
    fn note(
        &self,
        place: usize,
        key: Option<NodeKey>,
        outcome: NodeOutcome,
        reasons: Vec<Reason>,
        outputs: IndexMap<String, OutputRecord>,
        error: Option<String>,
        seconds: f64,
    ) -> Result<(), StoreError> {
        let node = &self.plan.nodes()[place];
        let (id, operator) = (node.id().to_owned(), node.entry.name.to_owned());
        let run = NodeRun { node: id, operator, key, outcome, reasons, outputs, error, seconds };
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.node(&run)?;
        if outcome == NodeOutcome::Cached { Ok(()) } else { ledger.flush() }
    }

    fn finish(mut self, outcome: Result<(), StoreError>) -> Result<RunSummary, StoreError> {
        self.summary.seconds = self.start.elapsed().as_secs_f64();
        self.reporter.event(&Event::RunFinished(self.summary.clone()));
        self.record.finished = Some(unix_time());
        self.record.exit = Some(exit_code(&self.summary));
        if let Some(known) = self.sources.changed() {
            self.store.keep_sources(known)?;
        }
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.finish(&self.record)?;
        drop(ledger);
        let shared = self.store.share_run(&self.record.id);
        outcome.and(shared).map(|()| self.summary)
    }
}

/// Type, rows and bytes of a node's default output.
fn default_output(node: &crate::plan::Node, outputs: &IndexMap<String, OutputRecord>) -> (String, u64, u64) {
    let port = node.default_output();
    let record = port.and_then(|port| outputs.get(port));
    let output = port.and_then(|port| node.outputs.get(port)).map(ToString::to_string).unwrap_or_default();
    (output, record.map_or(0, |record| record.rows), record.map_or(0, |record| record.bytes))
}

fn with_all_before(plan: &Plan, chosen: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut found = chosen.clone();
    let mut pending: Vec<usize> = chosen.iter().copied().collect();
    while let Some(place) = pending.pop() {
        pending.extend(plan.dependencies(place).into_iter().filter(|before| found.insert(*before)));
    }
    found
}

/// Exit code of a finished run: 0 ok, 1 a node failed, 3 dead letters, 4 the budget is used up, 5 a node failed for the machine's sake (disk, network,
/// lock), 130 interrupted.
#[must_use]
pub fn exit_code(summary: &RunSummary) -> i32 {
    match summary {
        _ if summary.interrupted => 130,
        _ if summary.machine_failure => 5,
        _ if summary.failed > 0 => 1,
        _ if summary.budget.is_some() => 4,
        _ if summary.dead_letters > 0 => 3,
        _ => 0,
    }
}

/// The newest record of each node over the last runs of the pipeline, this one left out.
///
/// Reading stops once every node of the plan was seen.
pub(super) fn last_nodes(store: &Store, plan: &Plan, own: &str) -> BTreeMap<String, NodeRun> {
    let mut nodes = BTreeMap::new();
    let mut missing: BTreeSet<&str> = plan.nodes().iter().map(crate::plan::Node::id).collect();
    let ids = store.run_ids();
    let earlier = ids.iter().rev().filter(|id| id.as_str() != own).take(50);
    for id in earlier {
        if store.run(id).is_none_or(|record| record.pipeline != plan.name()) {
            continue;
        }
        if missing.is_empty() {
            break;
        }
        for node in store.run_nodes(id) {
            if node.key.is_some() {
                missing.remove(node.node.as_str());
                nodes.entry(node.node.clone()).or_insert(node);
            }
        }
    }
    nodes
}
