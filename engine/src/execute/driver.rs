//! The driver: feeds the scheduler, looks results up, runs kernels, commits, records. Decisions are the scheduler's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use indexmap::IndexMap;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::books::Books;
use super::decide::{Decider, Decision, Look, Pending};
use super::endpoints::Endpoints;
use super::history::History;
use super::identity::Known;
use super::job::NodeJob;
use super::loss::Account;
use super::node::{NodeDone, run_node};
use super::options::Settings;
use super::resources::{Demand, Pool};
use super::scheduler::{Command, Event as Step, Scheduler, Task};
use super::stop::Stop;
use super::versions::version;
use crate::fingerprint::{NodeKey, Reason, SourceDigests, SourceProblem};
use crate::operator::{Blame, Context, EndpointSession, OperatorError, http_client};
use crate::plan::{Node, Plan, with_all_before};
use crate::report::{Event, Reporter, RunSummary};
use crate::store::{Damage, NodeResult, NodeRun, OutputRecord, Store, StoreError, StoreUse};

/// Runs a plan.
///
/// # Errors
/// When the store cannot be used; failures of nodes are in the summary.
pub async fn run(
    plan: Arc<Plan>,
    store: Store,
    options: Settings,
    reporter: Arc<dyn Reporter>,
    stop: Stop,
) -> Result<RunSummary, StoreError> {
    let (sender, receiver) = unbounded_channel();
    let mut driver = Driver::new(plan, store, options, reporter, stop, sender)?;
    let watch = driver.endpoints.watch(Arc::clone(&driver.books.reporter));
    let outcome = driver.drive(receiver).await;
    if let Some(watch) = watch {
        watch.abort();
    }
    driver.finish(outcome)
}

/// How often a node's damaged result is made again in one run.
const REMAKES: u32 = 3;

struct Driver {
    plan: Arc<Plan>,
    store: Store,
    options: Settings,
    /// The chosen nodes and all that stand before them: nobody asks for the others.
    wanted: BTreeSet<usize>,
    stop: Stop,
    done: UnboundedSender<NodeDone>,
    known: Known,
    /// Keys of the nodes that are known.
    keys: BTreeMap<usize, NodeKey>,
    sources: SourceDigests,
    history: History,
    books: Books,
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
        options: Settings,
        reporter: Arc<dyn Reporter>,
        stop: Stop,
        done: UnboundedSender<NodeDone>,
    ) -> Result<Self, StoreError> {
        let in_use = store.enter()?;
        let wanted = with_all_before(&plan, &options.selected);
        let told = stop.clone();
        let sources = SourceDigests::new(store.known_sources(), version).until(move || told.is_draining());
        let endpoints = Endpoints::new(&plan, options.budget, &options.secrets, options.rebuy);
        let books = Books::open(&plan, &store, wanted.len(), options.limit, reporter, &endpoints.redactor)?;
        let history = History::before(books.run());
        let http = http_client().map_err(|error| StoreError::Location(error.message))?;
        Ok(Self {
            plan,
            store,
            options,
            wanted,
            stop,
            done,
            known: Known::new(),
            keys: BTreeMap::new(),
            sources,
            history,
            books,
            http,
            endpoints,
            _in_use: in_use,
            remaking: BTreeMap::new(),
            remade: BTreeMap::new(),
            unsettled: BTreeMap::new(),
        })
    }

    async fn drive(&mut self, mut receiver: UnboundedReceiver<NodeDone>) -> Result<(), StoreError> {
        self.books.begin();
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
                self.books.interrupted();
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
            Decision::Broken(problem @ SourceProblem::Changing { .. }) => {
                Err(OperatorError::machine(problem.to_string()).with_help("run it again once nothing writes there"))
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
        let session = EndpointSession { redactor: self.endpoints.redactor.clone(), ..EndpointSession::default() };
        super::node::bare_context(node, &self.options, &self.books.reporter, &self.stop, &self.store, &self.http)
            .with_session(session)
    }

    fn start_node(&self, place: usize, pending: Pending) -> Result<(), StoreError> {
        let Pending { parts, key, preimage, reasons } = pending;
        let node = &self.plan.nodes()[place];
        let recall = !reasons.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
        let inputs = node.inputs.iter();
        let inputs = inputs.filter_map(|input| self.known.get(&input.node)?.get(&input.output).cloned()).collect();
        let begun = NodeRun::begun(node.id(), node.entry.name, key, reasons.clone(), preimage);
        self.books.begun(&begun)?;
        let job = NodeJob {
            plan: Arc::clone(&self.plan),
            place,
            parts,
            inputs,
            reasons,
            recall,
            store: self.store.clone(),
            options: self.options.clone(),
            reporter: Arc::clone(&self.books.reporter),
            stop: self.stop.clone(),
            run: self.books.run().to_owned(),
            http: self.http.clone(),
            session: self.endpoints.session(node),
            calls: self.endpoints.calls(node, &self.store),
            started: (self.books.started() * 1e9) as u64,
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
        self.keys.extend(key.map(|key| (place, key)));
        let held_back = match self.deliver(place, &outputs) {
            Ok(held_back) => held_back,
            Err(error) => return self.fail(place, &error),
        };
        self.books.cached(&self.plan.nodes()[place], key, &outputs, held_back)?;
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
            self.books.reporter.event(&Event::Delivered { node: node.id().to_owned(), destination });
        }
        Ok(None)
    }

    /// What the end of a node means for the scheduler. A node that was made again counts as done there already: what
    /// waited for it goes on.
    fn settled(&mut self, done: NodeDone) -> Result<Vec<Step>, StoreError> {
        let place = done.place;
        if let Some((input, damage)) = done.damaged {
            return self.remake(place, input, damage);
        }
        if done.taken_over {
            self.books.count(&done.spent);
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
        self.books.reporter.event(&Event::NodeLog { node, line });
        self.books.count(&done.spent);
        match self.launch(place)? {
            None => Ok(Vec::new()),
            Some(step) => self.go_on(place, step),
        }
    }

    /// The run was told to stop before the node's key was known.
    fn passed_over(&mut self, place: usize) -> Result<Step, StoreError> {
        self.books.interrupted();
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
        self.books.count(&done.spent);
        match done.outcome {
            Err(error) if error.blame == Blame::Cancelled && self.closed(place).is_some() => {
                let error = OperatorError::machine(self.closed(place).unwrap_or_default());
                let error = error.with_help("what was answered is kept; the next run asks the rows that are left");
                self.fail_with(place, &error, Some(done.key), done.reasons, done.seconds)
            }
            Err(error) if error.blame == Blame::Cancelled => {
                if let Some(limit) = self.endpoints.budget.refused() {
                    self.books.budget_used_up(limit);
                }
                self.books.skipped(&self.plan.nodes()[place], Some(done.key), done.reasons, done.seconds)?;
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
        self.books.finished(&self.plan.nodes()[place], result, why, cached_rows, held_back)?;
        self.known.insert(place, result.outputs.clone());
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
        self.books.failed(&self.plan.nodes()[place], error, key, why, seconds)?;
        Ok(Step::Failed(place))
    }

    fn skip(&mut self, place: usize) -> Result<(), StoreError> {
        if !self.wanted.contains(&place) {
            return Ok(());
        }
        self.books.skipped(&self.plan.nodes()[place], None, Vec::new(), 0.0)
    }

    fn finish(mut self, outcome: Result<(), StoreError>) -> Result<RunSummary, StoreError> {
        self.books.end();
        if let Some(known) = self.sources.changed() {
            self.store.keep_sources(known)?;
        }
        self.books.close(outcome)
    }
}
