//! Handles the end of a node: delivers and records its outputs, or runs it again.

use std::sync::Arc;

use super::recompute::{READINGS, Remake};
use super::reject_share::Account;
use super::scheduler::Event as Step;
use super::{Driver, Report};
use crate::error::{Blame, OperatorError};
use crate::execute::decide::loop_decision::{Verdict, is_open, verdict};
use crate::execute::node::NodeDone;
use crate::execute::node::context::bare_context;
use crate::execute::node::deliver::{Made, deliver, hands_over, is_delivered};
use crate::report::Event;
use crate::store::{Damage, NodeResult, StoreError};

impl Driver {
    /// Records how a node's run ended, or runs it again.
    pub(super) fn settled(&mut self, done: NodeDone) -> Result<(), StoreError> {
        let (place, key) = (done.place, Some(done.key));
        if let Some((input, damage)) = done.damaged {
            return self.remake(place, input, damage);
        }
        self.books.count(self.run.node(place), &done.spent, done.failed_calls);
        if done.taken_over {
            tracing::warn!("another machine took over `{}` meanwhile", self.run.node(place).id());
            return self.launch(place);
        }
        match done.outcome {
            Ok(NodeResult { outputs, figures, .. }) if done.reused => {
                self.hand_over(place, Made::Known { key, outputs, figures })
            }
            Ok(result) => {
                if let Some(limit) = self.run.endpoints.budget.refused().filter(|_| done.unasked > 0) {
                    self.books.budget_used_up(limit);
                }
                let (reasons, cached_rows) = (done.reasons, done.cached_rows);
                self.hand_over(place, Made::Now { result: Box::new(result), reasons, cached_rows })
            }
            Err(error) if error.blame == Blame::Changed && self.repeats.changed(place) => {
                let line = format!("{}: nothing was recorded, the node runs again", error.message);
                let node = self.run.node(place).id().to_owned();
                self.run.reporter.event(&Event::NodeLog { node, line });
                self.launch(place)
            }
            Err(error) if error.blame == Blame::Cancelled && self.closed(place).is_none() => {
                if let Some(limit) = self.run.endpoints.budget.refused() {
                    self.books.budget_used_up(limit);
                }
                self.books.skipped(self.run.node(place), key, done.reasons, done.seconds)?;
                self.end(Step::Failed(place))
            }
            Err(error) => {
                let error = self.final_error(place, error);
                self.books.failed(self.run.node(place), &error, key, done.reasons, done.seconds)?;
                self.end(Step::Failed(place))
            }
        }
    }

    /// Rewrites a node's error with help for the user.
    fn final_error(&self, place: usize, error: OperatorError) -> OperatorError {
        match error.blame {
            Blame::Changed => {
                let message = format!("{}, {READINGS} times in a row: nothing was recorded", error.message);
                let help = "run it again once nothing writes there; if the program itself does, name that file or folder in `writes`";
                OperatorError::machine(message).with_help(help)
            }
            Blame::Cancelled => self.closed(place).map_or(error, |closed| {
                let kept = "received answers are stored; the next run asks for the remaining rows";
                let help = closed.help.iter().fold(String::new(), |_, help| format!("{help}; "));
                closed.with_help(help + kept)
            }),
            _ => error,
        }
    }

    /// Returns why the node's endpoint takes no more calls, unless the run is stopping.
    fn closed(&self, place: usize) -> Option<OperatorError> {
        self.run.endpoints.closed(self.run.node(place)).filter(|_| !self.run.stop.is_draining())
    }

    /// Recomputes the node that produced a damaged input; the node at `place` runs after that.
    fn remake(&mut self, place: usize, input: usize, damage: Damage) -> Result<(), StoreError> {
        let input = &self.run.node(place).inputs[input];
        let (from, port) = (input.node, input.port.clone());
        if damage == Damage::Released {
            tracing::info!("an output of `{}` was released: making it again", self.run.node(from).id());
        } else {
            tracing::warn!("an output of `{}` is damaged ({damage}): recomputing it", self.run.node(from).id());
        }
        match self.repeats.damaged(from, place, damage) {
            Remake::Launch => {
                self.releases.reopen(from);
                self.launch(from)
            }
            Remake::Wait => Ok(()),
            Remake::GiveUp => {
                let message = format!("the input `{port}` was recomputed and is damaged each time it is read");
                self.fail(place, &OperatorError::machine(message).with_help("check the disk and its controller"))
            }
        }
    }

    /// Checks a known result, then delivers it.
    pub(super) fn hand_over(&mut self, place: usize, made: Made) -> Result<(), StoreError> {
        self.keys.extend(made.key().map(|key| (place, key)));
        // Rows of a test are few, and made up.
        if self.run.node(place).spec.checks.is_empty() || self.run.options.trial.is_some() {
            return self.pass_on(place, made);
        }
        self.check(place, made);
        Ok(())
    }

    /// Delivers the outputs of a settled node, or records why they are held back.
    pub(super) fn pass_on(&mut self, place: usize, made: Made) -> Result<(), StoreError> {
        if !hands_over(self.run.node(place)) {
            return self.succeeded(place, made, None);
        }
        if let Some(why) = self.held_back(place, &made) {
            return self.succeeded(place, made, Some(why));
        }
        self.elsewhere(move |run| {
            let node = run.node(place);
            let outcome = deliver(node, made.outputs(), &run.store, &bare_context(run, node));
            Report::Delivered(place, made, outcome)
        });
        Ok(())
    }

    /// Returns why outputs with destinations are not delivered.
    fn held_back(&self, place: usize, made: &Made) -> Option<String> {
        let run = &self.run;
        if run.node(place).operator.declaration.destinations().is_empty() || run.options.asked.deliver_anyway {
            return None;
        }
        let (plan, store, directory) = (&run.plan, &run.store, &run.options.directory);
        let account = Account { plan, known: &self.known, keys: &self.keys, store, directory };
        let why = self.held_by_check(place).or_else(|| {
            let node = run.node(place);
            // Somebody has decided about these rows: without a change, every night would raise the same alarm.
            let is_known = || is_delivered(node, made.outputs(), store, &bare_context(run, node));
            account.held_back(place).filter(|_| !is_known())
        })?;
        Some(run.endpoints.redactor.strike(&why).into_owned())
    }

    pub(super) fn delivered(
        &mut self,
        place: usize,
        made: Made,
        outcome: Result<Vec<String>, OperatorError>,
    ) -> Result<(), StoreError> {
        let destinations = match outcome {
            Ok(destinations) => destinations,
            Err(error) if error.blame == Blame::Cancelled => return self.stopped(place, &made),
            Err(error) => return self.fail(place, &error),
        };
        for destination in destinations {
            let node = self.run.node(place).id().to_owned();
            self.run.reporter.event(&Event::Delivered { node, destination });
        }
        self.succeeded(place, made, None)
    }

    fn succeeded(&mut self, place: usize, made: Made, held_back: Option<String>) -> Result<(), StoreError> {
        if !is_open(&self.run.plan, place) {
            return self.recorded(place, made, held_back);
        }
        self.elsewhere(move |run| {
            let said = verdict(&run.plan, &run.store, place, made.outputs());
            Report::Judged(place, made, held_back, said)
        });
        Ok(())
    }

    /// Goes on with what a decision says about its loop. An unreadable decision is computed again.
    pub(super) fn judged(
        &mut self,
        place: usize,
        made: Made,
        held_back: Option<String>,
        said: Result<Verdict, OperatorError>,
    ) -> Result<(), StoreError> {
        // Other loops may have ended meanwhile, so that the plan is another one than that of the reading thread.
        let settled = said.and_then(|(why, hands_on)| Ok((self.run.plan.settled(place, why, hands_on)?, hands_on)));
        let (plan, hands_on) = match settled {
            Ok(settled) => settled,
            Err(error) => {
                tracing::warn!("{}", error.message);
                return self.remake_checked(place, Damage::Corrupt);
            }
        };
        let ends = plan.is_some();
        if let Some(plan) = plan {
            self.run = Arc::new(self.run.with(plan));
            self.books.hands_on(&self.run.plan, place);
        }
        self.books_of(place, &made, held_back)?;
        if ends {
            let plan = &self.run.plan;
            plan.decides(place).map_or(Ok(()), |repeats| self.books.loop_ended(plan, repeats))?;
        }
        self.rule_out(place, hands_on);
        self.passed(place, made)
    }

    fn recorded(&mut self, place: usize, made: Made, held_back: Option<String>) -> Result<(), StoreError> {
        self.books_of(place, &made, held_back)?;
        self.passed(place, made)
    }

    /// Makes the outputs of a recorded node known to others.
    fn passed(&mut self, place: usize, made: Made) -> Result<(), StoreError> {
        self.known.insert(place, made.into_outputs());
        self.let_go(place);
        self.end(Step::Succeeded(place))
    }

    fn books_of(&mut self, place: usize, made: &Made, held_back: Option<String>) -> Result<(), StoreError> {
        let node = self.run.node(place);
        match made {
            Made::Known { key, outputs, figures } => self.books.cached(node, *key, outputs, figures, held_back),
            Made::Now { result, reasons, cached_rows } => {
                self.books.finished(node, result, reasons.clone(), *cached_rows, held_back)
            }
        }
    }
}
