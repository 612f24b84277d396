//! Releases the folders of middle rounds while the run goes, as the `keep:` of their loop says.

use super::{Driver, Report};
use crate::execute::settings::clock::unix_time;
use crate::fingerprint::NodeKey;
use crate::node_id::Round;
use crate::operator::PortType;
use crate::plan::NodeIndex;
use crate::store::{NodeResult, Releasing, StoreError, Trash};

impl Driver {
    /// Releases what may go now that a node is settled. A failure to release fails nothing.
    pub(super) fn release_settled(&mut self, index: NodeIndex) {
        if self.releases.policy.is_idle() {
            return;
        }
        let (node, store) = (self.run.node(index), &self.run.store);
        let known = self.known.get(&index);
        let folders =
            known.into_iter().flatten().filter(|(port, _)| matches!(node.outputs.get(*port), Some(PortType::Tree(_))));
        let may_go = self.releases.policy.ports(index);
        let (mut lacks, mut has) = (false, false);
        for (port, output) in folders {
            let is_here = store.artifact_folder(&output.id).exists();
            lacks |= !is_here;
            has |= is_here && may_go.contains(port);
            self.releases.folders.entry(output.id).or_default().insert(index);
        }
        let found = self.releases.policy.settle(index, lacks, has);
        self.postpone(found);
    }

    /// Releases the rounds that a loop does not hand on after this decision.
    pub(super) fn rule_out(&mut self, decision: NodeIndex, hands_on: Round) {
        if !self.releases.policy.is_idle() {
            let found = self.releases.policy.rule_out(self.run.plan.passed_over(decision, hands_on));
            self.postpone(found);
        }
    }

    /// Releases what only a node would have read that does not run, because a loop ended.
    pub(super) fn leave_out(&mut self, index: NodeIndex) {
        let found = self.releases.policy.leave_out(index);
        self.postpone(found);
    }

    fn postpone(&mut self, found: Vec<NodeIndex>) {
        self.releases.postponed.extend(found);
        self.release_postponed();
    }

    /// Releases what may go, unless another process uses the store.
    pub(super) fn release_postponed(&mut self) {
        while let Some(index) = self.releases.postponed.first().copied() {
            if self.releases.policy.can_go(index) {
                match self.release(index) {
                    Ok(None) => return,
                    Ok(Some(trash)) => self.throw_away(index, trash),
                    Err(error) => {
                        tracing::warn!("cannot release the outputs of `{}`: {error}", self.run.node(index).id());
                    }
                }
            }
            self.releases.postponed.remove(&index);
        }
    }

    /// Releases the folders of one node; `None`: another process uses the store.
    fn release(&mut self, index: NodeIndex) -> Result<Option<Trash>, StoreError> {
        let run = self.run.clone();
        let of_key = |key: &NodeKey| run.store.result(key).filter(NodeResult::is_made_again_here);
        let Some(result) = self.keys.get(&index).and_then(of_key) else { return Ok(Some(Trash::default())) };
        let mut going = self.releases.going(index, &result);
        let pinned = self.releases.protected(&run.store)?;
        going.retain(|id| !pinned.contains(id));
        if going.is_empty() {
            return Ok(Some(Trash::default()));
        }
        let (node, pipeline) = (run.node(index).id().to_owned(), run.plan.name.clone());
        let of = Releasing { node, pipeline, time: unix_time() };
        run.store.release(&going, &of, &self.in_use, &mut self.releases.neighbours)
    }

    /// Removes released files on another thread.
    fn throw_away(&mut self, index: NodeIndex, trash: Trash) {
        if trash.bytes == 0 {
            return self.releases.policy.retained(index);
        }
        self.releases.policy.released(index);
        self.log.released(self.run.node(index), trash.bytes);
        self.releases.running += 1;
        self.elsewhere(move |run| {
            if let Err(error) = trash.empty() {
                tracing::warn!("released files of `{}` are still there: {error}", run.node(index).id());
            }
            Report::Removed
        });
    }
}
