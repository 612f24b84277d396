//! Folds the rounds of loops: the nodes of a loop that differ only in their round are one group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use searchmill_engine::{Event, NodeId, NodeIndex, Plan};

/// Interval of lines about the rounds of a node, while a run goes.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Nodes that are shown in one line.
pub(crate) struct Group {
    /// The id of the node, or that of the rounds with their number: `step ×40`.
    pub(crate) name: String,
    /// Their places in the plan, in its order.
    pub(crate) places: Vec<NodeIndex>,
}

/// Groups nodes of a plan, each group where its first node is; with `all`, every node is a group of its own.
pub(crate) fn folded(plan: &Plan, places: impl IntoIterator<Item = NodeIndex>, all: bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut of_rounds: BTreeMap<String, usize> = BTreeMap::new();
    for place in places {
        let Some(node) = plan.get(place) else { continue };
        if all || node.spec.round().is_none() {
            groups.push(Group { name: node.id().to_string(), places: vec![place] });
            continue;
        }
        let at = *of_rounds.entry(node.spec.id_of_rounds()).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.places.push(place),
            None => groups.push(Group { name: node.id().to_string(), places: vec![place] }),
        }
    }
    for (id, at) in of_rounds {
        if let Some(group) = groups.get_mut(at).filter(|group| group.places.len() > 1) {
            group.name = format!("{id} ×{}", group.places.len());
        }
    }
    groups
}

/// Counts words, in the order of their first ones: `38 cached, 2 to run`.
pub(crate) fn counted<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for word in words {
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Folds what a run tells of rounds: of each node of a loop, the first round that runs is told whole, later ones every ten
/// seconds; cached rounds are counted.
#[derive(Default)]
pub(super) struct Rounds {
    /// The id without the round, of each node of a loop.
    nodes: BTreeMap<NodeId, String>,
    /// Cached rounds that are not told yet, in the order of their first ones.
    cached: Vec<(String, usize)>,
    /// When a line about a node that started, or ended, was told last.
    told: BTreeMap<(String, bool), Instant>,
    /// Nodes whose start was not told.
    quiet: BTreeSet<String>,
    /// Nodes of loops, without their rounds, of which was told that another loop ended before them.
    ended: BTreeSet<String>,
}

/// What to print for an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Telling {
    /// Lines about cached rounds, to print before it: nodes, and the rest of the line.
    pub(super) before: Vec<(String, String)>,
    /// Whether the event itself is not told.
    pub(super) folds: bool,
}

impl Rounds {
    pub(super) fn of(plan: &Plan, all: bool) -> Self {
        let rounds = plan.nodes.iter().filter(|node| !all && node.spec.round().is_some());
        let nodes = rounds.map(|node| (node.id().to_owned(), node.spec.id_of_rounds())).collect();
        Self { nodes, ..Self::default() }
    }

    /// Whether cached rounds of the node are counted.
    pub(super) fn folds(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Whether it is the first round of its node of which is told that another loop ended before it.
    pub(super) fn is_first_ended(&mut self, node: &str) -> bool {
        self.nodes.get(node).is_none_or(|id| self.ended.insert(id.clone()))
    }

    /// Notes an event.
    pub(super) fn note(&mut self, event: &Event, now: Instant) -> Telling {
        let folds = match event {
            Event::NodeCached { node, .. } => {
                if let Some(id) = self.nodes.get(node) {
                    match self.cached.iter_mut().find(|(known, _)| known == id) {
                        Some((_, count)) => *count += 1,
                        None => self.cached.push((id.clone(), 1)),
                    }
                }
                return Telling::default();
            }
            Event::NodeStarted { node, .. } => self.is_recent(node, false, now),
            Event::NodeFinished { node, .. } => self.is_recent(node, true, now),
            Event::NodeFailed { .. } | Event::RunFinished(_) => false,
            _ => return Telling::default(),
        };
        let mut before = Vec::new();
        if !folds {
            for (id, count) in self.cached.drain(..) {
                before.push((id, format!("×{count} rounds")));
            }
        }
        Telling { before, folds }
    }

    /// Whether a line about another round of the node was told a moment ago.
    fn is_recent(&mut self, node: &str, ended: bool, now: Instant) -> bool {
        let Some(id) = self.nodes.get(node) else { return false };
        if ended && !self.quiet.remove(node) {
            // Its start was told.
            self.told.insert((id.clone(), true), now);
            return false;
        }
        let last = self.told.entry((id.clone(), ended)).or_insert(now);
        // Equal if it was inserted just now; two events of the same instant are both told.
        let is_first = *last == now;
        let is_due = now.saturating_duration_since(*last) >= TOLD_EVERY;
        if is_due {
            *last = now;
        }
        let folds = !is_first && !is_due;
        if folds && !ended {
            self.quiet.insert(node.to_owned());
        }
        folds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> Rounds {
        let nodes = (0..9).map(|round| (format!("step@round={round}").into(), "step".to_owned())).collect();
        Rounds { nodes, ..Rounds::default() }
    }

    fn started(round: usize) -> Event {
        Event::NodeStarted {
            node: format!("step@round={round}").into(),
            operator: "train".to_owned(),
            reasons: Vec::new(),
            time: 0.0,
        }
    }

    fn cached(node: String) -> Event {
        Event::NodeCached {
            node: node.into(),
            operator: "train".to_owned(),
            output: "model".to_owned(),
            rows: 0,
            bytes: 1,
            rejects: 0,
            key: None,
            figures: BTreeMap::new(),
        }
    }

    #[test]
    fn cached_rounds_are_one_line_and_later_rounds_are_told_every_ten_seconds() {
        let (mut rounds, start) = (rounds(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for round in 0..3 {
            assert_eq!(rounds.note(&cached(format!("step@round={round}")), at(0)), Telling::default());
        }
        let first = rounds.note(&started(3), at(1));
        assert_eq!(first, Telling { folds: false, before: vec![("step".to_owned(), "×3 rounds".to_owned())] });
        assert!(rounds.note(&started(4), at(2)).folds && rounds.note(&started(5), at(9)).folds);
        assert!(!rounds.note(&started(6), at(12)).folds);
        assert!(!rounds.folds("report") && rounds.folds("step@round=8"));
        assert_eq!(rounds.note(&cached("report".to_owned()), at(13)), Telling::default());
    }
}
