//! The driver: feeds the scheduler, looks results up, runs kernels, commits, records. Decisions are the scheduler's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use searchmill_schemas::text_column;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::decide::{Decider, Decision, History, Look, Pending, Request, Retry};
use super::ending::exit_code;
use super::endpoints::Endpoints;
use super::identity::Known;
use super::loss::Account;
use super::node::{NodeDone, NodeJob, run_node};
use super::recorded::Recorded;
use super::resources::{Demand, Machine, Pool};
use super::run_id::{after_all, run_id};
use super::scheduler::{Command, Event as Step, Scheduler, Task};
pub use super::stop::Stop;
use super::versions::version;
use super::worker::Workers;
use crate::fingerprint::{NodeKey, Reason, SourceDigests, SourceProblem};
use crate::operator::{
    Blame, Budget, Context, InputArtifact, OperatorError, Outside, SecretLookup, Usage, http_client,
};
use crate::plan::{Node, Plan, with_all_before};
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
    /// Pay again for remembered answers that are damaged, however many.
    pub rebuy: bool,
    /// Try rows again, too, that `on_error: drop` passed over.
    pub retry_dropped: bool,
    /// Deliver outputs also where too many rows were lost before them.
    pub deliver_anyway: bool,
}

impl RunOptions {
    pub(super) fn retry(&self) -> Retry {
        if self.retry_dropped { Retry::Dropped } else { Retry::Failed }
    }

    /// What decides which nodes run.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request {
            directory: &self.directory,
            limit: self.limit,
            selected: Some(&self.selected),
            force: Some(&self.force),
            no_cache: self.no_cache,
            retry: self.retry(),
        }
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

/// How often a node's damaged result is made again in one run.
const REMAKES: u32 = 3;

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
    /// Keys of the nodes that are known.
    keys: BTreeMap<usize, NodeKey>,
    sources: SourceDigests,
    history: History,
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
    /// How often nodes were made again.
    remade: BTreeMap<usize, u32>,
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
            ledger: None,
        };
        let told = stop.clone();
        let sources = SourceDigests::new(store.known_sources(), version).until(move || told.is_draining());
        let writer = store.start_run(&record)?;
        let currency = plan.currency().unwrap_or_default();
        let summary = RunSummary { run: record.id.clone(), currency, ..RunSummary::default() };
        let endpoints = Endpoints::new(&plan, options.budget, &options.secrets, options.rebuy);
        let redactor = endpoints.redactor.clone();
        let ledger = Arc::new(Mutex::new(writer));
        let (known, history, start) = (Known::new(), History::before(&record.id), Instant::now());
        let reporter: Arc<dyn Reporter> = Arc::new(Recorded { inner: reporter, ledger: Arc::clone(&ledger), redactor });
        let http = http_client().map_err(|error| StoreError::Location(error.message))?;
        Ok(Self {
            plan,
            store,
            options,
            wanted,
            reporter,
            stop,
            done,
            known,
            keys: BTreeMap::new(),
            sources,
            history,
            record,
            ledger,
            summary,
            spent_nanos: 0,
            start,
            http,
            endpoints,
            _in_use: in_use,
            remaking: BTreeMap::new(),
            remade: BTreeMap::new(),
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
        let pending = match self.decide(place)? {
            Decision::Frozen(last) => return self.cached(place, last.key, last.outputs).map(Some),
            Decision::Cached { key, result } => return self.cached(place, Some(key), result.outputs).map(Some),
            Decision::Run(pending) => Ok(pending),
            Decision::Held(_) => {
                let error = OperatorError::pipeline("it was not chosen to run, and its result is not in the store");
                Err(error.with_help("run it first, or leave out --from and --only"))
            }
            Decision::Waits { .. } => Err(OperatorError::engine("its inputs are not known")),
            Decision::Broken(SourceProblem::Stopped) if self.stop.is_draining() => {
                return self.passed_over(place).map(Some);
            }
            Decision::Broken(SourceProblem::Stopped) => {
                Err(OperatorError::machine("a source cannot be read: the file system timed out"))
            }
            Decision::Broken(problem) => Err(OperatorError::pipeline(problem.to_string())),
            Decision::Unfetched(error) if error.blame == Blame::Cancelled => {
                return self.passed_over(place).map(Some);
            }
            Decision::Unfetched(error) | Decision::Misfit(error) => Err(error),
        };
        let pending = self.store.sound().map_err(OperatorError::from).and(pending);
        match pending {
            Ok(pending) => self.start_node(place, *pending).map(|()| None),
            Err(error) => self.fail(place, &error).map(Some),
        }
    }

    /// What becomes of a node; files that its key needs are fetched for that. What was found damaged a moment ago is
    /// not believed.
    fn decide(&mut self, place: usize) -> Result<Decision, StoreError> {
        let look = if self.remaking.contains_key(&place) { Look::Closely } else { Look::Here };
        let decided = self.decided(place, look)?;
        if !matches!(decided, Decision::Broken(SourceProblem::NotFetched { .. })) {
            return Ok(decided);
        }
        let node = &self.plan.nodes()[place];
        let context = self.context(node);
        match tokio::task::block_in_place(|| node.operator.fetch(&context)) {
            Ok(()) => self.decided(place, look),
            Err(error) => Ok(Decision::Unfetched(error)),
        }
    }

    fn decided(&mut self, place: usize, look: Look) -> Result<Decision, StoreError> {
        let request = self.options.request();
        let decider = Decider { plan: &self.plan, store: &self.store, request, history: &self.history };
        decider.decide(place, &self.known, &mut self.sources, look)
    }

    /// For work outside the node's own run.
    fn context(&self, node: &Node) -> Context {
        let outside = Outside { redactor: self.endpoints.redactor.clone(), ..Outside::default() };
        super::node::bare_context(node, &self.options, &self.reporter, &self.stop, &self.store, &self.http)
            .with_outside(outside)
    }

    fn start_node(&self, place: usize, pending: Pending) -> Result<(), StoreError> {
        let Pending { parts, key, preimage, reasons } = pending;
        let node = &self.plan.nodes()[place];
        let recall = !reasons.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
        let inputs = node.inputs.iter();
        let inputs = inputs.filter_map(|input| self.known.get(&input.node)?.get(&input.output).cloned()).collect();
        // A run that is killed leaves behind what it had begun; what was found cached so far is seen to be in use.
        let begun = NodeRun::begun(node.id(), node.entry.name, key, reasons.clone(), preimage);
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.node(&begun)?;
        ledger.flush()?;
        drop(ledger);
        let job = NodeJob {
            plan: Arc::clone(&self.plan),
            place,
            parts,
            inputs,
            reasons,
            recall,
            store: self.store.clone(),
            options: self.options.clone(),
            reporter: Arc::clone(&self.reporter),
            stop: self.stop.clone(),
            run: self.record.id.clone(),
            http: self.http.clone(),
            outside: self.endpoints.outside(node),
            calls: self.endpoints.calls(node, &self.store),
            started: (self.record.started * 1e9) as u64,
        };
        let done = self.done.clone();
        tokio::spawn(async move {
            // The receiver is gone only when the run has already failed.
            drop(done.send(run_node(job).await));
        });
        Ok(())
    }

    fn cached(
        &mut self,
        place: usize,
        key: Option<NodeKey>,
        outputs: IndexMap<String, OutputRecord>,
    ) -> Result<Step, StoreError> {
        let plan = Arc::clone(&self.plan);
        let node = &plan.nodes()[place];
        self.keys.extend(key.map(|key| (place, key)));
        let held_back = match self.deliver(place, &outputs) {
            Ok(held_back) => held_back,
            Err(error) => return self.fail(place, &error),
        };
        self.summary.cached += 1;
        let (output, rows, bytes) = default_output(node, &outputs);
        let rejects = outputs.get("rejects").map_or(0, |output| output.rows);
        let (id, operator) = (node.id().to_owned(), node.entry.name.to_owned());
        self.reporter.event(&Event::NodeCached { node: id, operator, output, rows, bytes, rejects, key });
        let outcome = self.tell_held_back(place, held_back.as_ref(), NodeOutcome::Cached);
        self.note(place, key, outcome, Vec::new(), outputs.clone(), held_back, 0.0)?;
        self.known.insert(place, outputs);
        Ok(Step::Succeeded(place))
    }

    /// Hands outputs over, or says why they are held back.
    fn deliver(&self, place: usize, outputs: &IndexMap<String, OutputRecord>) -> Result<Option<String>, OperatorError> {
        let node = &self.plan.nodes()[place];
        if !node.outputs.values().any(|port| matches!(port, crate::operator::PortType::Tree(_))) {
            return Ok(None);
        }
        if !node.operator.destinations().is_empty() && !self.options.deliver_anyway {
            let (known, keys) = (&self.known, &self.keys);
            let (plan, store, directory) = (&self.plan, &self.store, &self.options.directory);
            if let Some(why) = (Account { plan, known, keys, store, directory }).held_back(place) {
                return Ok(Some(self.endpoints.redactor.strike(&why).into_owned()));
            }
        }
        let context = self.context(node);
        // Remote destinations wait for the network.
        let deliver = || super::deliver::deliver(node, outputs, &self.store, &context);
        let delivered = tokio::task::block_in_place(deliver)?;
        for destination in delivered {
            self.reporter.event(&Event::Delivered { node: node.id().to_owned(), destination });
        }
        Ok(None)
    }

    /// What a node came to: its outcome, unless its outputs were held back.
    fn tell_held_back(&mut self, place: usize, why: Option<&String>, outcome: NodeOutcome) -> NodeOutcome {
        let Some(why) = why else { return outcome };
        self.summary.held_back += 1;
        let node = &self.plan.nodes()[place];
        let (destinations, reason) = (node.operator.destinations(), why.clone());
        self.reporter.event(&Event::HeldBack { node: node.id().to_owned(), destinations, reason });
        NodeOutcome::HeldBack
    }

    /// What the end of a node means for the scheduler. A node that was made again counts as done there already: what
    /// waited for it goes on.
    fn settled(&mut self, done: NodeDone) -> Result<Vec<Step>, StoreError> {
        let place = done.place;
        if let Some((input, damage)) = done.damaged {
            return self.remake(place, input, damage);
        }
        if done.taken_over {
            self.count(&done.spent);
            tracing::warn!("another machine went on with `{}` meanwhile", self.plan.nodes()[place].id());
            return self.launch(place)?.map_or(Ok(Vec::new()), |step| self.go_on(place, step));
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
        let times = self.remade.entry(from.node).or_default();
        *times += 1;
        if *times > REMAKES {
            let message = format!("the input `{}` was made again and is damaged each time it is read", from.port);
            let error = OperatorError::machine(message).with_help("look at the disk and its controller");
            let step = self.fail(place, &error)?;
            return self.go_on(place, step);
        }
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
            Err(error) if error.blame == Blame::Cancelled && self.closed(place).is_some() => {
                let error = OperatorError::machine(self.closed(place).unwrap_or_default());
                let error = error.with_help("what was answered is kept; the next run asks the rows that are left");
                self.fail_with(place, &error, Some(done.key), done.reasons, done.seconds)
            }
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

    /// Why a node's endpoint is asked no more, where the run is not told to stop.
    fn closed(&self, place: usize) -> Option<String> {
        self.endpoints.closed(&self.plan.nodes()[place]).filter(|_| !self.stop.is_draining())
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
        self.keys.insert(place, result.key);
        let held_back = match self.deliver(place, &result.outputs) {
            Ok(held_back) => held_back,
            Err(error) => return self.fail(place, &error),
        };
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
            rejected_for: rejected_for(&self.store, &result.outputs),
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
        let outcome = self.tell_held_back(place, held_back.as_ref(), NodeOutcome::Finished);
        self.note(place, Some(result.key), outcome, why, outputs.clone(), held_back, result.seconds)?;
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
        let text = Some(self.endpoints.redactor.strike(&error.message).into_owned());
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
        let run = NodeRun { node: id, operator, key, outcome, reasons, outputs, error, seconds, preimage: None };
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

/// The most frequent reason of a node's rejects, with one of its messages: `connection: …`.
fn rejected_for(store: &Store, outputs: &IndexMap<String, OutputRecord>) -> Option<String> {
    let rejects = outputs.get("rejects").filter(|output| output.rows > 0)?;
    let InputArtifact::Rows(rows) = store.open_input(&rejects.id).ok()? else { return None };
    let mut kinds: BTreeMap<String, (u64, String)> = BTreeMap::new();
    for batch in rows.batches() {
        let batch = batch.ok()?;
        let (kind, message) = (text_column(&batch, "kind").ok()?, text_column(&batch, "message").ok()?);
        for (kind, message) in kind.iter().zip(message).filter_map(|(kind, message)| kind.zip(message)) {
            let found = kinds.entry(kind.to_owned()).or_insert_with(|| (0, message.to_owned()));
            found.0 += 1;
        }
    }
    let (kind, (_, message)) = kinds.into_iter().max_by_key(|(_, (count, _))| *count)?;
    Some(format!("{kind}: {message}"))
}

/// Type, rows and bytes of a node's default output.
fn default_output(node: &crate::plan::Node, outputs: &IndexMap<String, OutputRecord>) -> (String, u64, u64) {
    let port = node.default_output();
    let record = port.and_then(|port| outputs.get(port));
    let output = port.and_then(|port| node.outputs.get(port)).map(ToString::to_string).unwrap_or_default();
    (output, record.map_or(0, |record| record.rows), record.map_or(0, |record| record.bytes))
}
