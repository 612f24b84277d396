//! Releases the folders of middle rounds while the run goes, as the `keep:` of their loop says.

use std::sync::Arc;

use super::{Driver, Report};
use crate::execute::settings::unix_time;
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
        let node = self.run.node(index);
        let (mut lacks, mut has) = (false, false);
        for (port, output) in self.known.get(&index).into_iter().flatten() {
            if !matches!(node.outputs.get(port), Some(PortType::Tree(_))) {
                continue;
            }
            // An earlier run or `gc --release` may have released it.
            let is_here = self.run.store.artifact_folder(&output.id).exists();
            lacks |= !is_here;
            has |= is_here && self.releases.policy.ports(index).contains(port);
            self.releases.folders.entry(output.id).or_default().insert(index);
        }
        let free = self.releases.policy.settle(index, lacks, has);
        self.postpone(free);
    }

    /// Releases the rounds that a loop does not hand on after this decision.
    pub(super) fn rule_out(&mut self, decision: NodeIndex, hands_on: Round) {
        if !self.releases.policy.is_idle() {
            let free = self.releases.policy.rule_out(self.run.plan.passed_over(decision, hands_on));
            self.postpone(free);
        }
    }

    /// Releases what only a node would have read that does not run, because a loop ended.
    pub(super) fn leave_out(&mut self, index: NodeIndex) {
        let free = self.releases.policy.leave_out(index);
        self.postpone(free);
    }

    fn postpone(&mut self, free: Vec<NodeIndex>) {
        self.releases.postponed.extend(free);
        self.release_postponed();
    }

    /// Releases what may go, unless another process uses the store.
    pub(super) fn release_postponed(&mut self) {
        while let Some(index) = self.releases.postponed.first().copied() {
            // Meanwhile, a node may run again that reads them.
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
        let (run, releases) = (&self.run, &mut self.releases);
        let Some(key) = self.keys.get(&index) else { return Ok(Some(Trash::default())) };
        let Some(result) = run.store.result(key).filter(NodeResult::is_made_again_here) else {
            return Ok(Some(Trash::default()));
        };
        // Pins may be added while the run goes. Of a shared store only the copy here goes, so what they protect stays.
        let pins = if run.store.is_shared() { Vec::new() } else { run.store.pins()? };
        if pins != releases.pinned.0 {
            let protected = run.store.pinned_artifacts(&pins);
            releases.pinned = (pins, protected);
        }
        let mut going = Vec::new();
        for port in releases.policy.ports(index) {
            let Some(output) = result.outputs.get(port) else { continue };
            // Another node may have given the same bytes, and with them the same folder.
            let mut makers = releases.folders.get(&output.id).into_iter().flatten();
            if !releases.pinned.1.contains(&output.id) && makers.all(|maker| releases.policy.can_go(*maker)) {
                going.push(output.id);
            }
        }
        if going.is_empty() {
            return Ok(Some(Trash::default()));
        }
        let (node, pipeline) = (run.node(index).id().to_owned(), run.plan.name.clone());
        let of = Releasing { node, pipeline, time: unix_time() };
        run.store.release(&going, &of, &self.in_use, &mut releases.neighbours)
    }

    /// Removes released files on another thread.
    fn throw_away(&mut self, index: NodeIndex, trash: Trash) {
        if trash.bytes == 0 {
            return self.releases.policy.retained(index);
        }
        self.releases.policy.released(index);
        self.log.released(self.run.node(index), trash.bytes);
        // The run ends only when they are gone; else the next process would have to remove them.
        self.releases.running += 1;
        let (run, reports) = (Arc::clone(&self.run), self.reports.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = trash.empty() {
                tracing::warn!("released files of `{}` are still there: {error}", run.node(index).id());
            }
            // Sending fails only when the run has already failed.
            drop(reports.send(Report::Removed));
        });
    }
}
