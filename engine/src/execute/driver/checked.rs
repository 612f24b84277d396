//! Handles the checks of a node: evaluates them, and acts on those that failed.

use crate::plan::NodeIndex;
use std::collections::{BTreeMap, BTreeSet};

use super::reject_share::Account;
use super::scheduler::Event as Step;
use super::{Driver, Report};
use crate::error::{Blame, OperatorError};
use crate::execute::decide::identity::Known;
use crate::execute::node::context::bare_context;
use crate::execute::node::deliver::Made;
use crate::execute::node::result_checks::{Subject, Unchecked};
use crate::plan::with_all_before;
use crate::spec::OnFailure;
use crate::store::{CheckOutcome, Damage, StoreError};

impl Driver {
    /// Starts the checks of a node whose result is known.
    pub(super) fn check(&self, index: NodeIndex, made: Made) {
        let inputs = self.run.node(index).inputs.iter();
        let inputs = inputs.filter_map(|input| Some((input.node, self.known.get(&input.node)?.clone())));
        let known: Known = inputs.chain([(index, made.outputs().clone())]).collect();
        let keys: BTreeMap<_, _> = self.keys.get(&index).map(|key| (index, *key)).into_iter().collect();
        self.elsewhere(move |run| {
            let (node, store, directory) = (run.node(index), &run.store, &run.options.directory);
            let account = Account { plan: &run.plan, known: &known, keys: &keys, store, directory };
            let before = run.history.last(&run.plan, store, node.id()).map(|last| last.checks.as_slice());
            let subject = Subject {
                node,
                outputs: made.outputs(),
                lost: account.lost(index),
                before: before.unwrap_or_default(),
                store,
                context: &bare_context(run, node),
            };
            let outcomes = subject.evaluate();
            Report::Checked(index, made, outcomes)
        });
    }

    /// Records the outcomes, and fails, holds or passes on the node.
    pub(super) fn checked(
        &mut self,
        index: NodeIndex,
        made: Made,
        outcomes: Result<Vec<CheckOutcome>, Unchecked>,
    ) -> Result<(), StoreError> {
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(Unchecked::Damaged(damage)) => return self.remake_checked(index, damage),
            Err(Unchecked::Stopped(error)) => return self.unchecked(index, &made, &error),
        };
        let node = self.run.node(index);
        let outcomes = self.books.checked(node, outcomes);
        let failed = |reaction| outcomes.iter().filter(move |one| !one.passed && one.check.on_failure == reaction);
        let words = |reaction| failed(reaction).map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if failed(OnFailure::Fail).next().is_some() {
            let error = OperatorError::data(format!("a check failed: {}", words(OnFailure::Fail)));
            let help =
                format!("the result is stored, and nothing after it ran; `searchmill show {}` shows it", node.id());
            self.books.check_failed(node, &error.with_help(help), &made)?;
            return self.end(Step::Failed(index));
        }
        if failed(OnFailure::Hold).next().is_some() {
            self.held.insert(index, format!("a check of `{}` failed: {}", node.id(), words(OnFailure::Hold)));
        }
        self.pass_on(index, made)
    }

    /// Returns the failed check that holds back the outputs of a node.
    pub(super) fn held_by_check(&self, index: NodeIndex) -> Option<String> {
        let before = with_all_before(&self.run.plan, &BTreeSet::from([index]));
        self.held.iter().find(|(held, _)| before.contains(held)).map(|(_, why)| why.clone())
    }

    /// Records a node whose checks were interrupted, or could not be evaluated on this machine. Its result is stored.
    fn unchecked(&mut self, index: NodeIndex, made: &Made, error: &OperatorError) -> Result<(), StoreError> {
        if error.blame == Blame::Cancelled {
            return self.stopped(index, made);
        }
        let message = format!("its checks cannot be evaluated: {}", error.message);
        let error = OperatorError { message, ..error.clone() };
        self.books.check_failed(self.run.node(index), &error, made)?;
        self.end(Step::Failed(index))
    }

    /// Records a node whose result is stored and whose checks or delivery were interrupted.
    pub(super) fn stopped(&mut self, index: NodeIndex, made: &Made) -> Result<(), StoreError> {
        let (reasons, seconds) = made.ran();
        self.books.skipped(self.run.node(index), made.key(), reasons, seconds)?;
        self.end(Step::Failed(index))
    }

    /// Runs the node again: a table was found damaged while it was checked.
    pub(super) fn remake_checked(&mut self, index: NodeIndex, damage: Damage) -> Result<(), StoreError> {
        tracing::warn!("an output of `{}` is damaged ({damage}): recomputing it", self.run.node(index).id());
        if self.repeats.damaged_itself(index) {
            return self.launch(index);
        }
        let error = OperatorError::machine("its output was recomputed and is damaged each time it is read");
        self.fail(index, &error.with_help("check the disk and its controller"))
    }
}
