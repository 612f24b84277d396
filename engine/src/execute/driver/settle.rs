//! Handles the end of a node: records it and makes its outputs known to others, or starts it again.

use std::sync::Arc;

use super::Driver;
use super::recompute::{READINGS, Recompute};
use super::run_log::ended;
use super::scheduler::Event as Step;
use crate::error::{Blame, OperatorError};
use crate::events::Event;
use crate::execute::decide::loop_decision::LoopDecision;
use crate::execute::node::deliver::Delivery;
use crate::execute::node::job::{Ending, Run};
use crate::execute::node::{NodeDone, Success};
use crate::plan::NodeIndex;
use crate::store::{Damage, NodeOutcome, NodeRun, StoreError};

impl Driver {
    /// Records how the life of a node ended, or starts it again.
    pub(super) fn settle(&mut self, done: NodeDone) -> Result<(), StoreError> {
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
    pub(super) fn recorded(&mut self, index: NodeIndex, success: Success) -> Result<(), StoreError> {
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
}
