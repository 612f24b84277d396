//! Loops about which rows decide: the nodes that decide after their rounds, what waits for these, and how the loops ended.

use std::collections::BTreeMap;
use std::fmt;

use crate::node_id::NodeId;
use crate::spec::{HandedOnSpec, LoopSpec, NodeSpec};

/// A loop about which rows decide: one combination of its matrix.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Its name with the coordinates of its matrix: `rl`, `rl@seed=1`.
    pub id: String,
    /// Whether rows may end it.
    pub stops: bool,
    pub(super) rounds: Vec<Round>,
    /// How it ended, once that is known.
    pub end: Option<End>,
}

impl Loop {
    /// Returns the number of its rounds; it may end before.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Returns the places of the nodes of a round, without the one that decides.
    pub fn nodes(&self, round: usize) -> &[usize] {
        self.rounds.get(round).map_or(&[], |round| &round.nodes)
    }
}

/// `the loop `rl` ended after round 12: `best` has not risen for 5 rounds`.
impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(end) = &self.end else { return write!(f, "the loop `{}` goes on", self.id) };
        write!(f, "the loop `{}` ended after round {}", self.id, end.last)?;
        end.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// The places of a round.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) decision: usize,
    /// The other nodes, in the same order in every round.
    pub(super) nodes: Vec<usize>,
}

/// How a loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The last round that ran.
    pub last: usize,
    /// Number of later rounds, which do not run.
    pub left_out: usize,
    /// The round that it hands on.
    pub hands_on: usize,
    /// Why it ended; `None`: all its rounds ran.
    pub why: Option<String>,
}

/// The loops of a plan about which rows decide.
#[derive(Clone, Debug, Default)]
pub(super) struct Loops {
    pub(super) all: Vec<Loop>,
    /// Loop and round of the nodes of all rounds, those that decide included.
    pub(super) round_of: BTreeMap<usize, (usize, usize)>,
    /// Nodes that do not run because a loop ended, and the loop.
    pub(super) ended: BTreeMap<usize, usize>,
    /// What loops hand on, by name (`rl.policy`, `rl.policy@seed=1`).
    pub(super) handed_on: BTreeMap<String, HandedOn>,
}

/// An output that a loop hands on.
#[derive(Clone, Debug)]
pub(super) struct HandedOn {
    /// The place of its node in the last round.
    pub(super) last: usize,
    /// Its output; `None` for the default one.
    pub(super) port: Option<String>,
}

impl Loops {
    /// Looks the loops up in a plan.
    pub(super) fn new(loops: &[LoopSpec], handed_on: &[HandedOnSpec], by_id: &BTreeMap<NodeId, usize>) -> Self {
        let named = |spec: &HandedOnSpec| {
            let last = *by_id.get(&spec.node)?;
            Some((spec.name.clone(), HandedOn { last, port: spec.port.clone() }))
        };
        let mut found = Self { handed_on: handed_on.iter().filter_map(named).collect(), ..Self::default() };
        for spec in loops {
            let mut rounds = Vec::with_capacity(spec.rounds.len());
            for (number, round) in spec.rounds.iter().enumerate() {
                let Some(decision) = by_id.get(&round.decision).copied() else { continue };
                let nodes: Vec<usize> = round.nodes.iter().filter_map(|id| by_id.get(id).copied()).collect();
                let all = nodes.iter().copied().chain([decision]);
                found.round_of.extend(all.map(|place| (place, (found.all.len(), number))));
                rounds.push(Round { decision, nodes });
            }
            found.all.push(Loop { id: spec.id.clone(), stops: spec.stops, rounds, end: None });
        }
        found
    }

    /// Returns the loop and the round after which the node decides.
    pub(super) fn decision(&self, place: usize) -> Option<(usize, usize)> {
        let (index, round) = *self.round_of.get(&place)?;
        (self.all[index].rounds.get(round)?.decision == place).then_some((index, round))
    }
}

/// Returns what runs one after the other without reading it: a decision after its round, the next round after the decision,
/// and what reads the result of a loop after the last decision.
pub(super) fn order_of(loops: &[LoopSpec], nodes: &[NodeSpec], by_id: &BTreeMap<NodeId, usize>) -> Vec<(usize, usize)> {
    let place = |id: &NodeId| by_id.get(id).copied();
    let mut order = Vec::new();
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in loops {
        let mut before = None;
        for round in &spec.rounds {
            let Some(decision) = place(&round.decision) else { continue };
            for node in round.nodes.iter().filter_map(place) {
                order.push((node, decision));
                order.extend(before.filter(|_| spec.stops).map(|before| (before, node)));
            }
            before = Some(decision);
        }
        let handing_on = spec.rounds.last().into_iter().flat_map(|round| &round.nodes);
        last.extend(before.into_iter().flat_map(|before| handing_on.clone().map(move |id| (id.as_str(), before))));
    }
    if last.is_empty() {
        return order;
    }
    for (place, node) in nodes.iter().enumerate() {
        let references = node.bindings().flat_map(|binding| &binding.references);
        let handed = references.filter(|reference| reference.handed_on);
        order.extend(handed.filter_map(|reference| Some((*last.get(reference.node.as_str())?, place))));
    }
    order
}
