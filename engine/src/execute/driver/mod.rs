//! The driver: carries out the scheduler's commands and tells it what came of them. It does what needs the whole run:
//! records nodes, settles the plan when a loop ends, releases folders, schedules. It never blocks: a node lives on a
//! task of its own (`node::live`) and reports once, when it has ended.
//!
//! `scheduler` says what is next. `launch` starts a node and `settle` handles its end: `run_log` records outcomes and
//! events, `recompute` counts nodes that run again. `release_policy` says what a run may release, and `release` does it.

mod scheduler;
mod recompute;
mod run_log;
mod release_policy;
mod release;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::recompute::{READINGS, Recompute, Recomputes};
use self::release_policy::ReleasePolicy;
use self::run_log::{RunLog, ended};
use self::scheduler::{Command, Event as Step, Scheduler, Task};
use super::decide::loop_decision::LoopDecision;
use super::decide::{History, Known, Look};
use super::node::deliver::{Delivery, hands_over};
use super::node::endpoints::{Endpoints, redactor};
use super::node::job::{Ending, KnownResult, Run, Upstream};
use super::node::{Decided, NodeDone, Success, decide, is_settled_at_once, live};
use super::process::version;
use super::settings::Stop;
use super::settings::options::Settings;
use super::settings::resources::{Demand, Pool};
use crate::error::{Blame, OperatorError};
use crate::events::{Event, Reporter, RunSummary};
use crate::fingerprint::{NodeKey, SourceDigests};
use crate::operator::http_client;
use crate::plan::{NodeIndex, Plan, with_all_before, with_all_before_but};
use crate::store::{ArtifactId, Damage, Neighbours, NodeOutcome, NodeRun, Pin, Store, StoreError, StoreUse};

/// Runs a plan.
///
/// # Errors
/// Fails if the store cannot be used; failures of nodes are in the summary.
pub(crate) async fn run(
    plan: Arc<Plan>,
    store: Store,
    options: Settings,
    reporter: Arc<dyn Reporter>,
    stop: Stop,
) -> Result<RunSummary, StoreError> {
    let (sender, receiver) = unbounded_channel();
    let mut driver = Driver::new(plan, store, options, reporter, stop, sender)?;
    let watch = driver.run.endpoints.watch(Arc::clone(&driver.run.reporter));
    let outcome = driver.drive(receiver).await;
    if let Some(watch) = watch {
        watch.abort();
    }
    driver.log.end();
    if let Some(known) = driver.run.sources.changed() {
        driver.run.store.keep_sources(&known)?;
    }
    driver.log.close(outcome)
}

/// The outcome of work on another thread.
enum Report {
    /// A node has ended.
    Done(Box<NodeDone>),
    /// Released files were removed.
    Removed,
}

struct Driver {
    run: Arc<Run>,
    /// The selected nodes and all their dependencies; other nodes are ignored.
    wanted: BTreeSet<NodeIndex>,
    reports: UnboundedSender<Report>,
    /// Events not yet passed to the scheduler.
    steps: VecDeque<Step>,
    known: Known,
    /// Keys of the settled nodes.
    keys: BTreeMap<NodeIndex, NodeKey>,
    recomputes: Recomputes,
    releases: ReleaseState,
    /// Nodes with a failed check that holds back what is delivered behind them, and the check.
    held: BTreeMap<NodeIndex, String>,
    log: RunLog,
    /// Prevents `gc` from collecting what this run may use.
    in_use: StoreUse,
}

/// What a run may release, what it has released, and what it has seen of the pins and of other processes.
#[derive(Default)]
struct ReleaseState {
    policy: ReleasePolicy,
    /// The folders of the settled nodes, each with the nodes that gave it.
    folders: BTreeMap<ArtifactId, BTreeSet<NodeIndex>>,
    /// Nodes whose folders could go, but another process used the store.
    postponed: BTreeSet<NodeIndex>,
    neighbours: Neighbours,
    /// The pins that were seen, and what they protect.
    pinned: (Vec<Pin>, BTreeSet<ArtifactId>),
    /// Removals in progress.
    running: usize,
}

impl Driver {
    fn new(
        plan: Arc<Plan>,
        store: Store,
        options: Settings,
        reporter: Arc<dyn Reporter>,
        stop: Stop,
        reports: UnboundedSender<Report>,
    ) -> Result<Self, StoreError> {
        let in_use = store.enter()?;
        // What only nodes need whose outputs a test gives does not run.
        let wanted = with_all_before_but(&plan, &options.chosen.selected, |index| options.given(index).is_some());
        let own_stop = stop.clone();
        let sources = SourceDigests::new(store.known_sources(), version).until(move || own_stop.is_draining());
        let redactor = redactor(&plan, &options);
        let log = RunLog::open(&plan, &store, wanted.len(), &options.asked.limit, options.fits, reporter, &redactor)?;
        let endpoints = Endpoints::new(&plan, &options, &store, &log.record.id, redactor);
        let mut releases = ReleaseState::default();
        // Nothing is released by a test, or where no loop has `keep:`.
        if options.trial.is_none() {
            releases.policy = ReleasePolicy::of(&plan, &options.chosen.asked);
        }
        let run = Run {
            id: log.record.id.clone(),
            started: (log.record.started * 1e9) as u64,
            plan,
            store,
            options: Arc::new(options),
            reporter: Arc::clone(&log.reporter),
            stop,
            http: http_client().map_err(StoreError::Machine)?,
            endpoints: Arc::new(endpoints),
            history: Arc::new(History::before(&log.record.id)),
            sources: Arc::new(sources),
            records: Arc::clone(&log.records),
        };
        Ok(Self {
            run: Arc::new(run),
            wanted,
            reports,
            steps: VecDeque::new(),
            known: Known::new(),
            keys: BTreeMap::new(),
            recomputes: Recomputes::default(),
            releases,
            held: BTreeMap::new(),
            log,
            in_use,
        })
    }

    async fn drive(&mut self, mut receiver: UnboundedReceiver<Report>) -> Result<(), StoreError> {
        self.log.begin();
        let (plan, options) = (&self.run.plan, &self.run.options);
        let mut tasks = Vec::with_capacity(plan.nodes.len());
        for (index, node) in plan.indexed() {
            tasks.push(Task {
                dependents: plan.dependents(index),
                dependencies: plan.dependencies(index).len(),
                demand: Demand {
                    gpus: options.asked.workers.gpus(&node.spec.resources),
                    memory: node.spec.resources.memory.unwrap_or_default(),
                },
            });
        }
        let jobs = options.asked.jobs.unwrap_or(options.machine.threads);
        let mut scheduler = Scheduler::new(tasks, Pool::new(jobs, &options.machine), options.asked.keep_going);
        let mut commands = scheduler.launch();
        let mut has_stopped = false;
        let notify = Arc::clone(&self.run.stop.notify);
        loop {
            // Created before the look at the flag, so that an order in between is not missed.
            let mut stopped = std::pin::pin!(notify.notified());
            stopped.as_mut().enable();
            if self.run.stop.is_draining() && !has_stopped {
                has_stopped = true;
                self.log.summary.interrupted = true;
                commands.extend(scheduler.step(Step::Stop));
            }
            self.carry_out(&mut scheduler, &mut commands)?;
            // With `keep:`, files are removed on other threads.
            if scheduler.is_done() && self.releases.running == 0 {
                return Ok(());
            }
            tokio::select! {
                Some(report) = receiver.recv() => match report {
                    Report::Done(done) => self.settle(*done)?,
                    Report::Removed => {
                        self.releases.running -= 1;
                        self.release_postponed();
                    }
                },
                () = stopped, if !has_stopped => {}
            }
        }
    }

    /// Carries out commands until no more follow: cached nodes settle here and unblock others.
    fn carry_out(&mut self, scheduler: &mut Scheduler, commands: &mut Vec<Command>) -> Result<(), StoreError> {
        loop {
            while let Some(step) = self.steps.pop_front() {
                commands.extend(scheduler.step(step));
            }
            match commands.pop() {
                Some(Command::Launch(index)) => self.launch(index)?,
                Some(Command::Skip(index)) => self.skip(index)?,
                None => return Ok(()),
            }
        }
    }

    /// Starts a node. If its result is known, it may settle at once; else it lives on a task of its own.
    fn launch(&mut self, index: NodeIndex) -> Result<(), StoreError> {
        if !self.wanted.contains(&index) {
            return self.end(Step::Succeeded(index));
        }
        if let Some(end) = self.run.plan.ended(index) {
            self.log.ended(self.run.node(index), &end)?;
            self.leave_out(index);
            return self.end(Step::Succeeded(index));
        }
        // To decide about it, files may have to be read, or the network awaited: that is done on another thread.
        let node = self.run.node(index);
        let may_block = hands_over(node) || !node.sources.is_empty() || self.run.store.is_shared();
        // If its result was just found damaged, all files of it are compared.
        let look = if self.recomputes.remaking.contains_key(&index) { Look::Closely } else { Look::Here };
        let decided = match self.run.options.given(index).cloned() {
            Some(outputs) => Some(Decided::Known(KnownResult { outputs, ..KnownResult::default() })),
            None if may_block || look == Look::Closely => None,
            None => Some(decide(&self.run, index, &self.known, look)?.into()),
        };
        match decided {
            // Most nodes of a plan that ran before: they need no task, and unblock others at once.
            Some(Decided::Known(result)) if is_settled_at_once(&self.run, index) => {
                let delivery = Delivery::Done(Vec::new());
                self.recorded(index, Success { result, delivery, holds: None, decision: None })
            }
            decided => {
                let (run, upstream, reports) = (Arc::clone(&self.run), self.upstream(index), self.reports.clone());
                tokio::spawn(async move {
                    let done = live(run, index, decided, look, upstream).await;
                    // Sending fails only when the run has already failed.
                    drop(reports.send(Report::Done(Box::new(done))));
                });
                Ok(())
            }
        }
    }

    /// Returns what is settled before a node, as far as it may look at it.
    fn upstream(&self, index: NodeIndex) -> Upstream {
        let node = self.run.node(index);
        let mut nodes: BTreeSet<NodeIndex> = node.inputs.iter().map(|input| input.node).collect();
        let mut held = None;
        if !node.operator.declaration.destinations().is_empty() {
            // Whether it delivers depends on all nodes before it: on the rows that they lost, and on their checks.
            nodes = with_all_before(&self.run.plan, &BTreeSet::from([index]));
            held = self.held.iter().find(|(held, _)| nodes.contains(held)).map(|(_, why)| why.clone());
        }
        let (mut known, mut keys) = (BTreeMap::new(), BTreeMap::new());
        for node in nodes {
            known.extend(self.known.get(&node).map(|outputs| (node, outputs.clone())));
            keys.extend(self.keys.get(&node).map(|key| (node, *key)));
        }
        Upstream { known, keys, held }
    }

    /// Records how the life of a node ended, or starts it again.
    fn settle(&mut self, done: NodeDone) -> Result<(), StoreError> {
        let NodeDone { index, key, reasons, cost, checks, outcome } = done;
        let mut seconds = 0.0;
        if let Some(cost) = cost {
            seconds = cost.seconds;
            self.log.count(self.run.node(index), &cost.spent, cost.failed_calls);
            if cost.unasked > 0 {
                self.report_budget();
            }
        }
        let node = self.run.node(index);
        if let Some(outcomes) = checks {
            self.log.checked(node, outcomes);
        }
        let ending = match outcome {
            Ok(success) => return self.recorded(index, success),
            Err(ending) => ending,
        };
        match ending {
            Ending::StoreFailed(error) => Err(error),
            Ending::NotStarted => {
                self.log.summary.interrupted = true;
                self.skip(index)?;
                self.end(Step::Failed(index))
            }
            Ending::DamagedInput(position, damage) => self.remake_input(index, position, damage),
            Ending::DamagedOutput(damage) => self.remake(index, damage),
            Ending::TakenOver => {
                tracing::warn!("another machine took over `{}` meanwhile", node.id());
                self.launch(index)
            }
            Ending::Failed(error) => {
                let failed = NodeRun { key, reasons, seconds, ..ended(node, NodeOutcome::Failed) };
                self.without_result(index, error, failed)
            }
            Ending::CheckFailed(result, error) => {
                let (key, (reasons, seconds)) = (result.key, result.ran());
                let failed = NodeRun { key, reasons, seconds, ..ended(node, NodeOutcome::CheckFailed) };
                self.log.failed(node, &error, NodeRun { outputs: result.outputs, ..failed })?;
                self.end(Step::Failed(index))
            }
            Ending::Undelivered(error) => self.fail(index, &error),
            Ending::Interrupted(result) => {
                // Its result is stored; the next run goes on from there.
                let (key, (reasons, seconds)) = (result.key, result.ran());
                self.log.skipped(NodeRun { key, reasons, seconds, ..ended(node, NodeOutcome::Skipped) })?;
                self.end(Step::Failed(index))
            }
        }
    }

    /// Records a node that succeeded, and makes its outputs known to others.
    fn recorded(&mut self, index: NodeIndex, success: Success) -> Result<(), StoreError> {
        let Success { result, delivery, holds, decision } = success;
        self.keys.extend(result.key.map(|key| (index, key)));
        self.held.extend(holds.map(|why| (index, why)));
        let mut held_back = None;
        match delivery {
            Delivery::HeldBack(why) => held_back = Some(why),
            Delivery::Done(destinations) => {
                for destination in destinations {
                    let node = self.run.node(index).id().to_owned();
                    self.run.reporter.event(&Event::Delivered { node, destination });
                }
            }
        }
        let mut has_ended = false;
        if let Some(LoopDecision { ended, hands_on }) = &decision {
            // Other loops may have ended since the node started: the plan of now counts.
            match self.run.plan.settled(index, ended.clone(), *hands_on) {
                Ok(None) => {}
                Ok(Some(plan)) => {
                    has_ended = true;
                    self.run = Arc::new(Run { plan: Arc::new(plan), ..Run::clone(&self.run) });
                    // Recorded with the node, so before it.
                    self.log.hands_on(&self.run.plan, index);
                }
                Err(error) => {
                    tracing::warn!("{}", error.message);
                    return self.remake(index, Damage::Corrupt);
                }
            }
        }
        self.log.settled(self.run.node(index), &result, held_back)?;
        if has_ended && let Some(repeats) = self.run.plan.decides(index) {
            self.log.loop_ended(&self.run.plan, repeats)?;
        }
        if let Some(decision) = decision {
            self.rule_out(index, decision.hands_on);
        }
        // Only now may others read it: its record is written.
        self.known.insert(index, result.outputs);
        self.release_settled(index);
        // Last, because it may launch nodes that read the outputs.
        self.end(Step::Succeeded(index))
    }

    /// Records a node without a result, or starts it again if its sources changed while they were read.
    fn without_result(&mut self, index: NodeIndex, error: OperatorError, failed: NodeRun) -> Result<(), StoreError> {
        if error.blame == Blame::Changed && self.recomputes.changed(index) {
            let line = format!("{}: nothing was recorded, the node runs again", error.message);
            let node = self.run.node(index).id().to_owned();
            self.run.reporter.event(&Event::NodeLog { node, line });
            return self.launch(index);
        }
        let mut closed = None;
        if error.blame == Blame::Cancelled {
            closed = self.run.endpoints.session(self.run.node(index)).any_closed();
            // Unless the run is stopping, the endpoint that takes no more calls is why.
            if closed.is_none() || self.run.stop.is_draining() {
                self.report_budget();
                self.log.skipped(NodeRun { outcome: NodeOutcome::Skipped, ..failed })?;
                return self.end(Step::Failed(index));
            }
        }
        // With help for the user.
        let error = match closed {
            Some(closed) => {
                let stored = "received answers are stored; the next run asks for the remaining rows";
                let help = match &closed.help {
                    Some(help) => format!("{help}; {stored}"),
                    None => stored.to_owned(),
                };
                closed.with_help(help)
            }
            None if error.blame == Blame::Changed => {
                let message = format!("{}, {READINGS} times in a row: nothing was recorded", error.message);
                let help = "run it again once nothing writes there; if the program itself does, name that file or folder in `writes`";
                OperatorError::machine(message).with_help(help)
            }
            None => error,
        };
        self.log.failed(self.run.node(index), &error, failed)?;
        self.end(Step::Failed(index))
    }

    /// Reports that the budget is used up, if a call was refused because of that.
    fn report_budget(&mut self) {
        if let Some(limit) = self.run.endpoints.budget.refused() {
            self.log.budget_used_up(limit);
        }
    }

    /// Recomputes the node that made a damaged input; the node at `index` runs after that.
    fn remake_input(&mut self, index: NodeIndex, position: usize, damage: Damage) -> Result<(), StoreError> {
        let input = &self.run.node(index).inputs[position];
        let (from, port) = (input.node, input.port.clone());
        if damage == Damage::Released {
            tracing::info!("an output of `{}` was released: making it again", self.run.node(from).id());
        } else {
            tracing::warn!("an output of `{}` is damaged ({damage}): recomputing it", self.run.node(from).id());
        }
        match self.recomputes.damaged(from, index, damage) {
            Recompute::Launch => {
                // It reads its own inputs again: these must not go now.
                self.releases.policy.reopen(from);
                self.launch(from)
            }
            Recompute::Wait => Ok(()),
            Recompute::GiveUp => {
                let message = format!("the input `{port}` was recomputed and is damaged each time it is read");
                self.fail(index, &OperatorError::machine(message).with_help("check the disk and its controller"))
            }
        }
    }

    /// Runs the node again: a table of its own was found damaged after its result was known.
    fn remake(&mut self, index: NodeIndex, damage: Damage) -> Result<(), StoreError> {
        tracing::warn!("an output of `{}` is damaged ({damage}): recomputing it", self.run.node(index).id());
        if self.recomputes.damaged_itself(index) {
            return self.launch(index);
        }
        let error = OperatorError::machine("its output was recomputed and is damaged each time it is read");
        self.fail(index, &error.with_help("check the disk and its controller"))
    }

    /// Ends a node. The scheduler already counts a node as ended that was recomputed for others; these are launched
    /// here.
    fn end(&mut self, step: Step) -> Result<(), StoreError> {
        let (Step::Succeeded(index) | Step::Failed(index)) = step else { return Ok(()) };
        let Some(waiting) = self.recomputes.waiting(index).filter(|waiting| !waiting.is_empty()) else {
            self.steps.push_back(step);
            return Ok(());
        };
        for waits in waiting {
            if matches!(step, Step::Succeeded(_)) {
                self.launch(waits)?;
            } else {
                self.fail(waits, &OperatorError::machine("an input was damaged, and could not be made again"))?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, index: NodeIndex, error: &OperatorError) -> Result<(), StoreError> {
        let node = self.run.node(index);
        self.log.failed(node, error, ended(node, NodeOutcome::Failed))?;
        self.end(Step::Failed(index))
    }

    fn skip(&mut self, index: NodeIndex) -> Result<(), StoreError> {
        if !self.wanted.contains(&index) {
            return Ok(());
        }
        self.log.skipped(ended(self.run.node(index), NodeOutcome::Skipped))
    }
}
