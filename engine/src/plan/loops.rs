//! Loops about which rows decide: the nodes that decide after their rounds, what waits for these, and how the loops ended.

use std::collections::BTreeMap;
use std::fmt;

use petgraph::graph::NodeIndex;

use crate::node_id::{NodeId, Round};
use crate::spec::{HandedOnSpec, LoopSpec, NodeSpec};

/// A loop about which rows decide: one combination of its matrix.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Its name with the coordinates of its matrix: `rl`, `rl@seed=1`.
    pub id: String,
    /// Whether rows may end it.
    pub stops: bool,
    pub(super) rounds: Vec<RoundNodes>,
    /// How it ended, once that is known.
    pub end: Option<End>,
}

impl Loop {
    /// Returns the number of its rounds; it may end before.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Returns the nodes of a round, without the one that decides.
    pub fn nodes(&self, round: Round) -> &[NodeIndex] {
        self.rounds.get(round.0).map_or(&[], |round| &round.nodes)
    }
}

/// `the loop `rl` ended after round 12: `best` has not risen for 5 rounds`.
impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(end) = &self.end else { return write!(f, "the loop `{}` goes on", self.id) };
        write!(f, "the loop `{}` ended after round {}", self.id, end.last)?;
        match &end.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

/// The nodes of a round.
#[derive(Clone, Debug)]
pub(super) struct RoundNodes {
    pub(super) decision: NodeIndex,
    /// The other nodes, in the same order in every round.
    pub(super) nodes: Vec<NodeIndex>,
}

/// How a loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The last round that ran.
    pub last: Round,
    /// Number of later rounds, which do not run.
    pub left_out: usize,
    /// The round that it hands on.
    pub hands_on: Round,
    /// Why it ended; `None`: all its rounds ran.
    pub why: Option<String>,
}

/// The position of a loop among those of a plan about which rows decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoopIndex(pub(super) usize);

/// Where a node stands in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InLoop {
    pub(super) of: LoopIndex,
    pub(super) round: Round,
}

/// The loops of a plan about which rows decide.
#[derive(Clone, Debug, Default)]
pub(super) struct Loops {
    pub(super) all: Vec<Loop>,
    /// Where the nodes of all rounds stand, those that decide included.
    pub(super) round_of: BTreeMap<NodeIndex, InLoop>,
    /// Nodes that do not run because a loop ended, and the loop.
    pub(super) ended: BTreeMap<NodeIndex, LoopIndex>,
    /// What loops hand on, by name (`rl.policy`, `rl.policy@seed=1`).
    pub(super) handed_on: BTreeMap<String, HandedOn>,
}

/// An output that a loop hands on.
#[derive(Clone, Debug)]
pub(super) struct HandedOn {
    /// Its node in the last round.
    pub(super) last: NodeIndex,
    /// Its output; `None` for the default one.
    pub(super) port: Option<String>,
}

impl Loops {
    /// Looks the loops up in a plan.
    pub(super) fn new(loops: &[LoopSpec], handed_on: &[HandedOnSpec], by_id: &BTreeMap<NodeId, NodeIndex>) -> Self {
        let mut found = Self::default();
        for spec in handed_on {
            if let Some(last) = by_id.get(&spec.node) {
                found.handed_on.insert(spec.name.clone(), HandedOn { last: *last, port: spec.port.clone() });
            }
        }
        for spec in loops {
            let of = LoopIndex(found.all.len());
            let mut rounds = Vec::with_capacity(spec.rounds.len());
            for (number, round) in spec.rounds.iter().enumerate() {
                let Some(decision) = by_id.get(&round.decision).copied() else { continue };
                let nodes: Vec<NodeIndex> = round.nodes.iter().filter_map(|id| by_id.get(id).copied()).collect();
                for node in nodes.iter().copied().chain([decision]) {
                    found.round_of.insert(node, InLoop { of, round: Round(number) });
                }
                rounds.push(RoundNodes { decision, nodes });
            }
            found.all.push(Loop { id: spec.id.clone(), stops: spec.stops, rounds, end: None });
        }
        found
    }

    /// Returns the loop and the round after which the node decides.
    pub(super) fn decision(&self, node: NodeIndex) -> Option<InLoop> {
        let place = *self.round_of.get(&node)?;
        let round = self.all[place.of.0].rounds.get(place.round.0)?;
        (round.decision == node).then_some(place)
    }

    /// Returns the node of the round that is handed on in place of that of the last round.
    pub(super) fn in_round(&self, node: NodeIndex, of: LoopIndex, hands_on: Round) -> Option<NodeIndex> {
        let rounds = &self.all[of.0].rounds;
        // All rounds have the same nodes in the same order.
        let position = rounds.last()?.nodes.iter().position(|last| *last == node)?;
        rounds.get(hands_on.0)?.nodes.get(position).copied()
    }
}

/// Returns pairs of nodes of which the second runs after the first without reading it: a decision after its round, the next
/// round after the decision, and what reads the result of a loop after the last decision.
pub(super) fn order_of(
    loops: &[LoopSpec],
    nodes: &[NodeSpec],
    by_id: &BTreeMap<NodeId, NodeIndex>,
) -> Vec<(NodeIndex, NodeIndex)> {
    let mut order = Vec::new();
    let mut last_decision: BTreeMap<&str, NodeIndex> = BTreeMap::new();
    for spec in loops {
        let mut decided = None;
        for round in &spec.rounds {
            let Some(decision) = by_id.get(&round.decision).copied() else { continue };
            for node in round.nodes.iter().filter_map(|id| by_id.get(id).copied()) {
                order.push((node, decision));
                // Only a loop that rows may end waits for the decision: else the next round runs in any case.
                if let Some(before) = decided.filter(|_| spec.stops) {
                    order.push((before, node));
                }
            }
            decided = Some(decision);
        }
        if let (Some(decision), Some(last)) = (decided, spec.rounds.last()) {
            // A reference to what the loop hands on names a node of its last round.
            last_decision.extend(last.nodes.iter().map(|id| (id.as_str(), decision)));
        }
    }
    // Most pipelines have no such loop, and many edges.
    if last_decision.is_empty() {
        return order;
    }
    for node in nodes {
        for reference in node.bindings().flat_map(|binding| &binding.references) {
            if reference.handed_on
                && let Some(before) = last_decision.get(reference.node.as_str())
                && let Some(after) = by_id.get(&node.id)
            {
                order.push((*before, *after));
            }
        }
    }
    order
}
