//! Handles the end of a node: delivers and records its outputs, or runs it again.

use crate::plan::NodeIndex;
use std::sync::Arc;

use super::recompute::{READINGS, Remake};
use super::reject_share::Account;
use super::scheduler::Event as Step;
use super::{Driver, Report};
use crate::error::{Blame, OperatorError};
use crate::execute::decide::loop_decision::{LoopDecision, is_open, read_decision};
use crate::execute::node::NodeDone;
use crate::execute::node::context::bare_context;
use crate::execute::node::deliver::{Made, deliver, hands_over, is_delivered};
use crate::report::Event;
use crate::store::{Damage, NodeResult, StoreError};

impl Driver {
    /// Records how a node's run ended, or runs it again.
    pub(super) fn settled(&mut self, done: NodeDone) -> Result<(), StoreError> {
        let (index, key) = (done.index, Some(done.key));
        if let Some((input, damage)) = done.damaged {
            return self.remake(index, input, damage);
        }
        self.books.count(self.run.node(index), &done.spent, done.failed_calls);
        if done.taken_over {
            tracing::warn!("another machine took over `{}` meanwhile", self.run.node(index).id());
            return self.launch(index);
        }
        match done.outcome {
            Ok(NodeResult { outputs, figures, .. }) if done.reused => {
                self.hand_over(index, Made::Known { key, outputs, figures })
            }
            Ok(result) => {
                if let Some(limit) = self.run.endpoints.budget.refused().filter(|_| done.unasked > 0) {
                    self.books.budget_used_up(limit);
                }
                let (reasons, cached_rows) = (done.reasons, done.cached_rows);
                self.hand_over(index, Made::Now { result: Box::new(result), reasons, cached_rows })
            }
            Err(error) if error.blame == Blame::Changed && self.repeats.changed(index) => {
                let line = format!("{}: nothing was recorded, the node runs again", error.message);
                let node = self.run.node(index).id().to_owned();
                self.run.reporter.event(&Event::NodeLog { node, line });
                self.launch(index)
            }
            Err(error) if error.blame == Blame::Cancelled && self.closed(index).is_none() => {
                if let Some(limit) = self.run.endpoints.budget.refused() {
                    self.books.budget_used_up(limit);
                }
                self.books.skipped(self.run.node(index), key, done.reasons, done.seconds)?;
                self.end(Step::Failed(index))
            }
            Err(error) => {
                let error = self.final_error(index, error);
                self.books.failed(self.run.node(index), &error, key, done.reasons, done.seconds)?;
                self.end(Step::Failed(index))
            }
        }
    }

    /// Rewrites a node's error with help for the user.
    fn final_error(&self, index: NodeIndex, error: OperatorError) -> OperatorError {
        match error.blame {
            Blame::Changed => {
                let message = format!("{}, {READINGS} times in a row: nothing was recorded", error.message);
                let help = "run it again once nothing writes there; if the program itself does, name that file or folder in `writes`";
                OperatorError::machine(message).with_help(help)
            }
            Blame::Cancelled => self.closed(index).map_or(error, |closed| {
                let kept = "received answers are stored; the next run asks for the remaining rows";
                let help = closed.help.iter().fold(String::new(), |_, help| format!("{help}; "));
                closed.with_help(help + kept)
            }),
            _ => error,
        }
    }

    /// Returns why the node's endpoint takes no more calls, unless the run is stopping.
    fn closed(&self, index: NodeIndex) -> Option<OperatorError> {
        self.run.endpoints.closed(self.run.node(index)).filter(|_| !self.run.stop.is_draining())
    }

    /// Recomputes the node that produced a damaged input; the node at `index` runs after that.
    fn remake(&mut self, index: NodeIndex, input: usize, damage: Damage) -> Result<(), StoreError> {
        let input = &self.run.node(index).inputs[input];
        let (from, port) = (input.node, input.port.clone());
        if damage == Damage::Released {
            tracing::info!("an output of `{}` was released: making it again", self.run.node(from).id());
        } else {
            tracing::warn!("an output of `{}` is damaged ({damage}): recomputing it", self.run.node(from).id());
        }
        match self.repeats.damaged(from, index, damage) {
            Remake::Launch => {
                self.releases.reopen(from);
                self.launch(from)
            }
            Remake::Wait => Ok(()),
            Remake::GiveUp => {
                let message = format!("the input `{port}` was recomputed and is damaged each time it is read");
                self.fail(index, &OperatorError::machine(message).with_help("check the disk and its controller"))
            }
        }
    }

    /// Checks a known result, then delivers it.
    pub(super) fn hand_over(&mut self, index: NodeIndex, made: Made) -> Result<(), StoreError> {
        self.keys.extend(made.key().map(|key| (index, key)));
        // Rows of a test are few, and made up.
        if self.run.node(index).spec.checks.is_empty() || self.run.options.trial.is_some() {
            return self.pass_on(index, made);
        }
        self.check(index, made);
        Ok(())
    }

    /// Delivers the outputs of a settled node, or records why they are held back.
    pub(super) fn pass_on(&mut self, index: NodeIndex, made: Made) -> Result<(), StoreError> {
        if !hands_over(self.run.node(index)) {
            return self.succeeded(index, made, None);
        }
        if let Some(why) = self.held_back(index, &made) {
            return self.succeeded(index, made, Some(why));
        }
        self.elsewhere(move |run| {
            let node = run.node(index);
            let outcome = deliver(node, made.outputs(), &run.store, &bare_context(run, node));
            Report::Delivered(index, made, outcome)
        });
        Ok(())
    }

    /// Returns why outputs with destinations are not delivered.
    fn held_back(&self, index: NodeIndex, made: &Made) -> Option<String> {
        let run = &self.run;
        if run.node(index).operator.declaration.destinations().is_empty() || run.options.asked.deliver_anyway {
            return None;
        }
        let (plan, store, directory) = (&run.plan, &run.store, &run.options.directory);
        let account = Account { plan, known: &self.known, keys: &self.keys, store, directory };
        let why = self.held_by_check(index).or_else(|| {
            let node = run.node(index);
            // Somebody has decided about these rows: without a change, every night would raise the same alarm.
            let is_known = || is_delivered(node, made.outputs(), store, &bare_context(run, node));
            account.held_back(index).filter(|_| !is_known())
        })?;
        Some(run.endpoints.redactor.strike(&why).into_owned())
    }

    pub(super) fn delivered(
        &mut self,
        index: NodeIndex,
        made: Made,
        outcome: Result<Vec<String>, OperatorError>,
    ) -> Result<(), StoreError> {
        let destinations = match outcome {
            Ok(destinations) => destinations,
            Err(error) if error.blame == Blame::Cancelled => return self.stopped(index, &made),
            Err(error) => return self.fail(index, &error),
        };
        for destination in destinations {
            let node = self.run.node(index).id().to_owned();
            self.run.reporter.event(&Event::Delivered { node, destination });
        }
        self.succeeded(index, made, None)
    }

    fn succeeded(&mut self, index: NodeIndex, made: Made, held_back: Option<String>) -> Result<(), StoreError> {
        if !is_open(&self.run.plan, index) {
            return self.recorded(index, made, held_back);
        }
        self.elsewhere(move |run| {
            let said = read_decision(&run.plan, &run.store, index, made.outputs());
            Report::Judged(index, made, held_back, said)
        });
        Ok(())
    }

    /// Goes on with what a decision says about its loop. An unreadable decision is computed again.
    pub(super) fn judged(
        &mut self,
        index: NodeIndex,
        made: Made,
        held_back: Option<String>,
        said: Result<LoopDecision, OperatorError>,
    ) -> Result<(), StoreError> {
        // Other loops may have ended meanwhile, so that the plan is another one than that of the reading thread.
        let settled =
            said.and_then(|said| Ok((self.run.plan.settled(index, said.ended, said.hands_on)?, said.hands_on)));
        let (plan, hands_on) = match settled {
            Ok(settled) => settled,
            Err(error) => {
                tracing::warn!("{}", error.message);
                return self.remake_checked(index, Damage::Corrupt);
            }
        };
        let ends = plan.is_some();
        if let Some(plan) = plan {
            self.run = Arc::new(self.run.with(plan));
            self.books.hands_on(&self.run.plan, index);
        }
        self.books_of(index, &made, held_back)?;
        if ends {
            let plan = &self.run.plan;
            if let Some(repeats) = plan.decides(index) {
                self.books.loop_ended(plan, repeats)?;
            }
        }
        self.rule_out(index, hands_on);
        self.passed(index, made)
    }

    fn recorded(&mut self, index: NodeIndex, made: Made, held_back: Option<String>) -> Result<(), StoreError> {
        self.books_of(index, &made, held_back)?;
        self.passed(index, made)
    }

    /// Makes the outputs of a recorded node known to others.
    fn passed(&mut self, index: NodeIndex, made: Made) -> Result<(), StoreError> {
        self.known.insert(index, made.into_outputs());
        self.let_go(index);
        self.end(Step::Succeeded(index))
    }

    fn books_of(&mut self, index: NodeIndex, made: &Made, held_back: Option<String>) -> Result<(), StoreError> {
        let node = self.run.node(index);
        match made {
            Made::Known { key, outputs, figures } => self.books.cached(node, *key, outputs, figures, held_back),
            Made::Now { result, reasons, cached_rows } => {
                self.books.finished(node, result, reasons.clone(), *cached_rows, held_back)
            }
        }
    }
}
