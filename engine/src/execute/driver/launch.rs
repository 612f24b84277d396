//! Handles the scheduler's launch command: settles the node from the store or starts it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::scheduler::Event as Step;
use super::{Driver, Report};
use crate::error::{Blame, OperatorError};
use crate::execute::decide::identity::Known;
use crate::execute::decide::{Decider, Decision, Look, Pending};
use crate::execute::node::context::bare_context;
use crate::execute::node::deliver::{Made, hands_over};
use crate::execute::node::job::NodeJob;
use crate::execute::node::run::Run;
use crate::execute::node::run_node;
use crate::fingerprint::{Reason, SourceProblem};
use crate::plan::{Node, NodeIndex};
use crate::store::{NodeResult, NodeRun, StoreError};

impl Driver {
    /// Decides about a node. If its result was just found damaged, all files of it are compared.
    pub(super) fn launch(&mut self, index: NodeIndex) -> Result<(), StoreError> {
        if !self.wanted.contains(&index) {
            return self.end(Step::Succeeded(index));
        }
        if let Some(end) = self.run.plan.ended(index) {
            self.books.ended(self.run.node(index), &end)?;
            self.leave_out(index);
            return self.end(Step::Succeeded(index));
        }
        if let Some(outputs) = self.run.options.given(index).cloned() {
            return self.pass_on(index, Made::Known { key: None, outputs, figures: BTreeMap::new() });
        }
        let look = if self.repeats.is_remade(index) { Look::Closely } else { Look::Here };
        let node = self.run.node(index);
        if look == Look::Here && !may_block(&self.run, node) {
            let decision = decide(&self.run, index, &self.known, look)?;
            return self.decided(index, decision);
        }
        let inputs = node.inputs.iter().filter_map(|input| Some((input.node, self.known.get(&input.node)?.clone())));
        let known: Known = inputs.collect();
        self.elsewhere(move |run| Report::Decided(index, decide(run, index, &known, look)));
        Ok(())
    }

    /// Settles a node from the store or starts it.
    pub(super) fn decided(&mut self, index: NodeIndex, decision: Decision) -> Result<(), StoreError> {
        let draining = self.run.stop.is_draining();
        let pending = match decision {
            Decision::Frozen(last) => {
                let figures = BTreeMap::new();
                return self.hand_over(index, Made::Known { key: last.key, outputs: last.outputs, figures });
            }
            Decision::Cached { key, result, .. } => {
                let NodeResult { outputs, figures, .. } = *result;
                return self.hand_over(index, Made::Known { key: Some(key), outputs, figures });
            }
            Decision::Unfetched(error) if error.blame == Blame::Cancelled => return self.passed_over(index),
            Decision::Broken(SourceProblem::Stopped) | Decision::Run(_) if draining => return self.passed_over(index),
            other => startable(other),
        };
        match self.run.store.sound().map_err(OperatorError::from).and(pending) {
            Ok(pending) => self.start_node(index, *pending),
            Err(error) => self.fail(index, &error),
        }
    }

    /// Skips a node because the run was stopped before the node started.
    fn passed_over(&mut self, index: NodeIndex) -> Result<(), StoreError> {
        self.books.interrupted();
        self.skip(index)?;
        self.end(Step::Failed(index))
    }

    fn start_node(&self, index: NodeIndex, pending: Pending) -> Result<(), StoreError> {
        let Pending { parts, key, preimage, reasons } = pending;
        let node = self.run.node(index);
        let recall = !reasons.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
        let inputs = node.inputs.iter();
        let inputs = inputs.filter_map(|input| self.known.get(&input.node)?.get(&input.output).cloned()).collect();
        self.books.begun(&NodeRun::begun(node.id(), node.entry.name, key, reasons.clone(), preimage.clone()))?;
        let endpoints = &self.run.endpoints;
        let (session, calls) = (endpoints.session(node), endpoints.calls(node, &parts, &self.run.store));
        let observed = endpoints.observed(node, &parts, &self.run.store);
        let run = Arc::clone(&self.run);
        let job = NodeJob { run, index, key, preimage, parts, inputs, reasons, recall, session, calls, observed };
        let reports = self.reports.clone();
        // Sending fails only when the run has already failed.
        tokio::spawn(async move { drop(reports.send(Report::Done(Box::new(run_node(job).await)))) });
        Ok(())
    }
}

/// Whether deciding about the node may read files or wait for the network.
fn may_block(run: &Run, node: &Node) -> bool {
    hands_over(node) || !node.sources.is_empty() || run.store.is_shared()
}

/// Decides about a node, given the outputs of its dependencies. Fetches files that the key needs.
fn decide(run: &Run, index: NodeIndex, known: &Known, look: Look) -> Result<Decision, StoreError> {
    let request = run.options.request();
    let decider = Decider { plan: &run.plan, store: &run.store, request, history: &run.history };
    let decided = decider.decide(index, known, &run.sources, look)?;
    if !matches!(decided, Decision::Broken(SourceProblem::NotFetched(_))) {
        return Ok(decided);
    }
    match run.node(index).operator.declaration.fetch(&bare_context(run, run.node(index))) {
        Ok(()) => decider.decide(index, known, &run.sources, look),
        Err(error) => Ok(Decision::Unfetched(error)),
    }
}

/// Returns the pending node, or why it cannot run. Cached results are settled before.
fn startable(decision: Decision) -> Result<Box<Pending>, OperatorError> {
    match decision {
        Decision::Run(pending) => Ok(pending),
        Decision::Held(_) => {
            let error = OperatorError::pipeline("it was not chosen to run, and its result is not in the store");
            Err(error.with_help("run it first, or omit `--from` and `--only`"))
        }
        Decision::Broken(SourceProblem::Stopped) => {
            Err(OperatorError::machine("a source cannot be read: the file system timed out"))
        }
        Decision::Broken(problem @ SourceProblem::Changing(_)) => {
            Err(OperatorError::machine(problem.to_string()).with_help("run it again when nothing writes to that place"))
        }
        Decision::Broken(problem) => Err(OperatorError::pipeline(problem.to_string())),
        Decision::Unfetched(error) | Decision::Misfit(error) => Err(error),
        Decision::Waits { .. } | Decision::Frozen(_) | Decision::Cached { .. } => {
            Err(OperatorError::engine("the inputs of the node are unknown"))
        }
    }
}
