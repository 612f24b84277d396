//! Rows lost on the way to an output to be delivered: rejected or dropped by earlier nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use searchmill_schemas::{Reject, from_batch};

use crate::events::RejectReason;
use crate::execute::decide::Known;
use crate::fingerprint::NodeKey;
use crate::operator::{InputArtifact, PortType};
use crate::plan::{Input, Node, NodeIndex, Plan};
use crate::store::{OutputRecord, Store};

/// The output of every operator that holds its rejected rows.
const REJECTS: &str = "rejects";

/// The state of a run's nodes.
pub(super) struct RejectShares<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) known: &'a Known,
    /// Keys of settled nodes.
    pub(crate) keys: &'a BTreeMap<NodeIndex, NodeKey>,
    pub(crate) store: &'a Store,
    /// Base of relative paths.
    pub(crate) directory: &'a Path,
}

/// Rows lost by one node.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loss {
    index: NodeIndex,
    lost: u64,
    of: u64,
}

impl Loss {
    fn share(&self) -> f64 {
        self.lost as f64 / self.of.max(1) as f64
    }
}

/// The share of rows left on the path with the most losses, and the node with the largest loss.
#[derive(Clone, Copy, Debug)]
struct Left {
    share: f64,
    worst: Option<Loss>,
}

const WHOLE: Left = Left { share: 1.0, worst: None };

/// What is left where a node is reached.
#[derive(Clone, Copy, Debug)]
struct Reached {
    /// Before and after its own loss; in a loop, of the rows of its round.
    arriving: Left,
    leaving: Left,
    /// After the worst of the rounds before: their rows are others, so their losses do not add up.
    earlier: Left,
}

const UNTOUCHED: Reached = Reached { arriving: WHOLE, leaving: WHOLE, earlier: WHOLE };

impl Left {
    fn worse(self, other: Self) -> Self {
        if other.share < self.share { other } else { self }
    }

    fn after(self, own: Loss) -> Self {
        let worst = self.worst.filter(|worst| worst.share() >= own.share()).unwrap_or(own);
        Self { share: self.share * (1.0 - own.share()), worst: Some(worst) }
    }
}

impl RejectShares<'_> {
    /// Returns why a node's output should be held back: too many rows were lost before it, or none are left.
    pub(crate) fn held_back(&self, index: NodeIndex) -> Option<String> {
        let node = &self.plan[index];
        let left = self.left(index);
        let (lost, most) = (1.0 - left.share, node.operator.declaration.max_reject_share());
        // Shares are products of fractions: a loss of exactly the limit must not exceed it by rounding.
        if lost > most + 1e-9 {
            let why = left.worst.map(|worst| self.words(&worst)).unwrap_or_default();
            let (lost, most) = (lost * 100.0, most * 100.0);
            return Some(format!(
                "{lost:.0} % of the rows were lost before it (`max_reject_share`: {most:.0} %): {why}"
            ));
        }
        if !self.is_empty(node) || node.operator.declaration.allows_empty() {
            return None;
        }
        if let Some(worst) = left.worst {
            return Some(format!("no rows are left: {}", self.words(&worst)));
        }
        for before in self.before(index) {
            let maker = &self.plan[before];
            let port_type = maker.default_output().and_then(|port| maker.outputs.get(port));
            let has_rows = matches!(port_type, Some(PortType::Rows(_))) && self.rows_of_default_output(before) > 0;
            if before != index && has_rows {
                return Some("no rows are left of those that were read".to_owned());
            }
        }
        // Nothing was lost: an empty delivery is right, unless it would replace something.
        self.existing(node).map(|path| format!("there are no rows, and `{path}` is not empty"))
    }

    /// Returns how many rows a node lost itself, and of how many.
    pub(crate) fn lost(&self, index: NodeIndex) -> (u64, u64) {
        match self.own(index) {
            Some(own) => (own.lost, own.of),
            None => (0, self.rows_of_default_output(index)),
        }
    }

    /// Describes the loss of a node and its most frequent reason.
    fn words(&self, loss: &Loss) -> String {
        let node = &self.plan[loss.index];
        let reasons = self.output(loss.index, REJECTS).map(|rejects| reject_reasons(self.store, rejects));
        let reason = match reasons.as_deref() {
            Some([first, ..]) => format!(", most often `{}`: {}", first.kind, first.message),
            _ => String::new(),
        };
        format!("`{}` lost {} of {}{reason}", node.id(), loss.lost, loss.of)
    }

    fn output(&self, index: NodeIndex, port: &str) -> Option<&OutputRecord> {
        self.known.get(&index)?.get(port)
    }

    fn rows_of_default_output(&self, index: NodeIndex) -> u64 {
        let output = self.plan[index].default_output().and_then(|port| self.output(index, port));
        output.map_or(0, |output| output.rows)
    }

    /// Returns the share left after a node, on the path with the most losses, its own included.
    fn left(&self, index: NodeIndex) -> Left {
        // Indices are in topological order: dependencies come first.
        let mut reached: BTreeMap<NodeIndex, Reached> = BTreeMap::new();
        for before in self.before(index) {
            let node = &self.plan[before];
            let own_round = node.spec.round();
            let (mut arriving, mut earlier) = (WHOLE, WHOLE);
            for input in &node.inputs {
                let from = reached.get(&input.node).copied().unwrap_or(UNTOUCHED);
                // A node that reads the rejects does not lose them.
                let left = if input.output == REJECTS { from.arriving } else { from.leaving };
                match (own_round, self.plan[input.node].spec.round()) {
                    (own, other) if own == other => {
                        arriving = arriving.worse(left);
                        earlier = earlier.worse(from.earlier);
                    }
                    // Of another round of the same loop: its rows are others.
                    (Some((own, _)), Some((other, _))) if own == other => {
                        earlier = earlier.worse(left.worse(from.earlier));
                    }
                    _ => arriving = arriving.worse(left.worse(from.earlier)),
                }
            }
            let leaving = self.own(before).map_or(arriving, |own| arriving.after(own));
            reached.insert(before, Reached { arriving, leaving, earlier });
        }
        reached.get(&index).map_or(WHOLE, |reached| reached.leaving.worse(reached.earlier))
    }

    /// Returns a node and all whose outputs it reads, directly or through others, in order.
    fn before(&self, index: NodeIndex) -> BTreeSet<NodeIndex> {
        let (mut found, mut pending) = (BTreeSet::from([index]), vec![index]);
        while let Some(index) = pending.pop() {
            let inputs = self.plan[index].inputs.iter().map(|input| input.node);
            pending.extend(inputs.filter(|before| found.insert(*before)));
        }
        found
    }

    /// Returns the rows lost by the node itself.
    fn own(&self, index: NodeIndex) -> Option<Loss> {
        let node = &self.plan[index];
        let rejects = self.output(index, REJECTS).map_or(0, |output| output.rows);
        // Rows that the budget left out wait for the next run: they are neither lost nor counted.
        let (unasked, dropped) = match self.keys.get(&index).and_then(|key| self.store.result(key)) {
            Some(result) => (result.unasked, result.dropped),
            None => (0, 0),
        };
        let lost = rejects.saturating_sub(unasked) + dropped;
        if lost == 0 {
            return None;
        }
        let declaration = &node.operator.declaration;
        let samples = declaration.rows.as_ref().map_or(1, |shape| u64::from(shape.samples.max(1)));
        // Up to a goal, not all rows of the input are drawn.
        let mut tables = rows_inputs(node).filter(|_| declaration.goal().is_none());
        let main = tables.find(|input| Some(&input.port) == node.main_port.as_ref());
        let of = match main.and_then(|input| self.output(input.node, &input.output)) {
            Some(input) => input.rows.saturating_mul(samples).saturating_sub(unasked),
            None => self.rows_of_default_output(index) + lost,
        };
        Some(Loss { index, lost, of: of.max(lost) })
    }

    /// Whether the node reads tables and all of them are empty.
    fn is_empty(&self, node: &Node) -> bool {
        let mut tables = rows_inputs(node).map(|input| self.output(input.node, &input.output)).peekable();
        tables.peek().is_some() && tables.all(|output| output.is_none_or(|output| output.rows == 0))
    }

    /// Returns a local destination that exists and is not empty.
    fn existing(&self, node: &Node) -> Option<String> {
        node.operator
            .declaration
            .destinations()
            .into_iter()
            .find(|path| std::fs::metadata(self.directory.join(path)).is_ok_and(|file| file.is_dir() || file.len() > 0))
    }
}

/// Number of different reasons that are counted (at most): messages may quote their row.
const MOST_REASONS: usize = 4096;

/// Returns why rows were rejected, most frequent reason first; nothing if the rejects cannot be read.
pub(crate) fn reject_reasons(store: &Store, rejects: &OutputRecord) -> Vec<RejectReason> {
    let mut reasons = read_reasons(store, rejects).unwrap_or_default();
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.rows));
    reasons.truncate(RejectReason::KEPT);
    reasons
}

fn read_reasons(store: &Store, rejects: &OutputRecord) -> Option<Vec<RejectReason>> {
    let InputArtifact::Rows(rows) = store.open_input(&rejects.id).ok()? else { return None };
    let mut found: BTreeMap<(String, String), RejectReason> = BTreeMap::new();
    for batch in rows.batches() {
        for reject in from_batch::<Reject>(&batch.ok()?).ok()? {
            let reason = RejectReason::of(reject);
            let group = reason.group();
            if let Some(known) = found.get_mut(&group) {
                known.rows += 1;
            } else if found.len() < MOST_REASONS {
                found.insert(group, reason);
            }
        }
    }
    Some(found.into_values().collect())
}

fn rows_inputs(node: &Node) -> impl Iterator<Item = &Input> {
    node.inputs.iter().filter(|input| matches!(input.port_type, PortType::Rows(_)))
}
