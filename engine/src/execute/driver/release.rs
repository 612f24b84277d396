//! Releases the folders of middle rounds while the run goes, as the `keep:` of their loop says.

use super::{Driver, Report};
use crate::execute::settings::clock::unix_time;
use crate::fingerprint::NodeKey;
use crate::operator::PortType;
use crate::store::{NodeResult, Releasing, StoreError, Trash};

impl Driver {
    /// Releases what may go now that a node is settled. A failure to release fails nothing.
    pub(super) fn let_go(&mut self, place: usize) {
        if self.releases.keeping.is_idle() {
            return;
        }
        let (node, store) = (self.run.node(place), &self.run.store);
        let known = self.known.get(&place);
        let folders =
            known.into_iter().flatten().filter(|(port, _)| matches!(node.outputs.get(*port), Some(PortType::Tree(_))));
        let may_go = self.releases.keeping.ports(place);
        let (mut lacks, mut has) = (false, false);
        for (port, output) in folders {
            let is_here = store.artifact_folder(&output.id).exists();
            lacks |= !is_here;
            has |= is_here && may_go.contains(port);
            self.releases.folders.entry(output.id).or_default().insert(place);
        }
        let found = self.releases.keeping.settle(place, lacks, has);
        self.postpone(found);
    }

    /// Releases the rounds that a loop does not hand on after this decision.
    pub(super) fn rule_out(&mut self, decision: usize, hands_on: usize) {
        if !self.releases.keeping.is_idle() {
            let found = self.releases.keeping.rule_out(self.run.plan.passed_over(decision, hands_on));
            self.postpone(found);
        }
    }

    /// Releases what only a node would have read that does not run, because a loop ended.
    pub(super) fn leave_out(&mut self, place: usize) {
        let found = self.releases.keeping.leave_out(place);
        self.postpone(found);
    }

    fn postpone(&mut self, found: Vec<usize>) {
        self.releases.postponed.extend(found);
        self.let_go_postponed();
    }

    /// Releases what may go, unless another process uses the store.
    pub(super) fn let_go_postponed(&mut self) {
        while let Some(place) = self.releases.postponed.first().copied() {
            if self.releases.keeping.can_go(place) {
                match self.release(place) {
                    Ok(None) => return,
                    Ok(Some(trash)) => self.throw_away(place, trash),
                    Err(error) => {
                        tracing::warn!("cannot release the outputs of `{}`: {error}", self.run.node(place).id());
                    }
                }
            }
            self.releases.postponed.remove(&place);
        }
    }

    /// Releases the folders of one node; `None`: another process uses the store.
    fn release(&mut self, place: usize) -> Result<Option<Trash>, StoreError> {
        let run = self.run.clone();
        let of_key = |key: &NodeKey| run.store.result(key).filter(NodeResult::is_made_again_here);
        let Some(result) = self.keys.get(&place).and_then(of_key) else { return Ok(Some(Trash::default())) };
        let mut going = self.releases.going(place, &result);
        let pinned = self.releases.protected(&run.store)?;
        going.retain(|id| !pinned.contains(id));
        if going.is_empty() {
            return Ok(Some(Trash::default()));
        }
        let (node, pipeline) = (run.node(place).id().to_owned(), run.plan.name.clone());
        let of = Releasing { node, pipeline, time: unix_time() };
        run.store.release(&going, &of, &self.in_use, &mut self.releases.neighbours)
    }

    /// Removes released files on another thread.
    fn throw_away(&mut self, place: usize, trash: Trash) {
        if trash.bytes == 0 {
            return self.releases.keeping.stays(place);
        }
        self.releases.keeping.went(place);
        self.books.released(self.run.node(place), trash.bytes);
        self.releases.running += 1;
        self.elsewhere(move |run| {
            if let Err(error) = trash.empty() {
                tracing::warn!("released files of `{}` are still there: {error}", run.node(place).id());
            }
            Report::Removed
        });
    }
}
