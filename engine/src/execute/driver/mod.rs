//! The driver: carries out the scheduler's commands and tells it what came of them. It does what needs the whole run:
//! records nodes, settles the plan when a loop ends, releases folders, schedules. It never blocks: a node lives on a
//! task of its own (`node::live`) and reports once, when it has ended.
//!
//! `scheduler` says what is next. `settle` handles the end of a node: `run_log` records outcomes and events, `recompute`
//! counts nodes that run again. `release_policy` says what a run may release, and `release` does it.

mod scheduler;
mod recompute;
mod run_log;
mod release_policy;
mod settle;
mod release;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::recompute::Recomputes;
use self::release_policy::ReleasePolicy;
use self::run_log::{RunLog, ended};
use self::scheduler::{Command, Event as Step, Scheduler, Task};
use super::decide::Look;
use super::decide::history::History;
use super::decide::identity::Known;
use super::node::deliver::{Delivery, hands_over};
use super::node::endpoints::{Endpoints, redactor};
use super::node::job::{KnownResult, Run, Upstream};
use super::node::{Decided, NodeDone, Success, decide, is_settled_at_once, live};
use super::process::version;
use super::settings::Stop;
use super::settings::options::Settings;
use super::settings::resources::{Demand, Pool};
use crate::error::OperatorError;
use crate::events::{Reporter, RunSummary};
use crate::fingerprint::{NodeKey, SourceDigests};
use crate::operator::http_client;
use crate::plan::{NodeIndex, Plan, with_all_before, with_all_before_but};
use crate::store::{ArtifactId, Neighbours, NodeOutcome, Pin, Store, StoreError, StoreUse};

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
