//! Handles the scheduler's launch command: settles a cached node at once, or lets it live on a task of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::scheduler::Event as Step;
use super::{Driver, Report};
use crate::execute::decide::Look;
use crate::execute::node::deliver::{KnownResult, hands_over};
use crate::execute::node::job::Upstream;
use crate::execute::node::start::decide;
use crate::execute::node::{Decided, Start, is_settled_at_once, live};
use crate::plan::{NodeIndex, with_all_before};
use crate::store::StoreError;

impl Driver {
    /// Starts a node. If its result was just found damaged, all files of it are compared.
    pub(super) fn launch(&mut self, index: NodeIndex) -> Result<(), StoreError> {
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
        let start = match self.run.options.given(index).cloned() {
            Some(outputs) => Start::Decided(Decided::Known(KnownResult::given(outputs))),
            None if self.recomputes.is_remade(index) => Start::Undecided(Look::Closely),
            None if may_block => Start::Undecided(Look::Here),
            None => Start::Decided(decide(&self.run, index, &self.known, Look::Here)?.into()),
        };
        match start {
            // Most nodes of a plan that ran before: they need no task, and unblock others at once.
            Start::Decided(Decided::Known(result)) if is_settled_at_once(&self.run, index) => {
                self.succeeded(index, result)
            }
            start => {
                let (run, upstream, reports) = (Arc::clone(&self.run), self.upstream(index), self.reports.clone());
                tokio::spawn(async move {
                    let done = live(run, index, start, upstream).await;
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
}
