//! Counts the nodes that run again within one run, because their result was damaged or released, or their sources changed
//! while they were read. No I/O.

use std::collections::BTreeMap;

use crate::plan::NodeIndex;
use crate::store::Damage;

/// Recomputations of a node's damaged result in one run (at most).
const REMAKES: u32 = 3;
/// Runs of a node whose sources change while they are read (at most).
pub(super) const READINGS: u32 = 3;

/// What to do about a damaged input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recompute {
    /// Run the node that produced it.
    Launch,
    /// That node is already being recomputed.
    Wait,
    /// The result was recomputed too often.
    GiveUp,
}

/// Nodes that run again.
#[derive(Debug, Default)]
pub(crate) struct Recomputes {
    /// Nodes being recomputed, each with the nodes that wait for it. Without any, its own check found it damaged.
    pub(super) remaking: BTreeMap<NodeIndex, Vec<NodeIndex>>,
    /// Recomputations by node.
    remade: BTreeMap<NodeIndex, u32>,
    /// Changes of a node's sources while they were read, by node.
    changed: BTreeMap<NodeIndex, u32>,
}

impl Recomputes {
    /// Records that `found_by` found the output of `from` damaged or released. Damage that comes back is a fault of the
    /// machine; an output may be released, and made again, for several nodes.
    pub(super) fn damaged(&mut self, from: NodeIndex, found_by: NodeIndex, damage: Damage) -> Recompute {
        // Several nodes may find the same damage: one recomputation is for all.
        if let Some(waiting) = self.remaking.get_mut(&from) {
            waiting.push(found_by);
            return Recompute::Wait;
        }
        if damage != Damage::Released && !self.may_remake(from) {
            return Recompute::GiveUp;
        }
        self.remaking.insert(from, vec![found_by]);
        Recompute::Launch
    }

    /// Records that a node's own check found its output damaged; returns whether the node may run again.
    pub(super) fn damaged_itself(&mut self, index: NodeIndex) -> bool {
        let may = self.may_remake(index);
        if may {
            self.remaking.entry(index).or_default();
        }
        may
    }

    fn may_remake(&mut self, index: NodeIndex) -> bool {
        let times = self.remade.entry(index).or_default();
        *times += 1;
        *times <= REMAKES
    }

    /// Records that a node's sources changed while they were read; returns whether it may run again.
    pub(crate) fn changed(&mut self, index: NodeIndex) -> bool {
        let count = self.changed.entry(index).or_default();
        *count += 1;
        *count < READINGS
    }

    /// Takes the nodes that wait for a recomputed node; `None` for any other node.
    pub(crate) fn waiting(&mut self, index: NodeIndex) -> Option<Vec<NodeIndex>> {
        self.remaking.remove(&index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(position: usize) -> NodeIndex {
        NodeIndex::new(position)
    }

    #[test]
    fn a_damaged_result_is_recomputed_once_for_all_that_wait_and_not_for_ever() {
        let mut repeats = Recomputes::default();
        assert_eq!(repeats.damaged(node(0), node(1), Damage::Corrupt), Recompute::Launch);
        assert_eq!(repeats.damaged(node(0), node(2), Damage::Corrupt), Recompute::Wait);
        assert!(repeats.remaking.contains_key(&node(0)));
        assert_eq!(repeats.waiting(node(0)), Some(vec![node(1), node(2)]));
        assert_eq!((repeats.waiting(node(0)), repeats.remaking.contains_key(&node(0))), (None, false));
        for _ in 1..REMAKES {
            assert_eq!(repeats.damaged(node(0), node(1), Damage::Corrupt), Recompute::Launch);
            for other in 2..9 {
                assert_eq!(
                    repeats.damaged(node(0), node(other), Damage::Corrupt),
                    Recompute::Wait,
                    "one recomputation is for all that wait"
                );
            }
            assert_eq!(repeats.waiting(node(0)).map(|waiting| waiting.len()), Some(8));
        }
        assert_eq!(repeats.damaged(node(0), node(1), Damage::Corrupt), Recompute::GiveUp);
    }

    #[test]
    fn a_released_output_is_made_again_as_often_as_it_is_needed() {
        let mut repeats = Recomputes::default();
        for _ in 0..1000 {
            assert_eq!(repeats.damaged(node(0), node(1), Damage::Released), Recompute::Launch);
            assert_eq!(repeats.waiting(node(0)), Some(vec![node(1)]));
        }
    }

    #[test]
    fn a_node_whose_check_finds_it_damaged_waits_for_nothing_and_runs_again() {
        let mut repeats = Recomputes::default();
        assert!(repeats.damaged_itself(node(0)) && repeats.remaking.contains_key(&node(0)));
        assert!(repeats.damaged_itself(node(0)), "damaged again before it ended");
        assert_eq!(repeats.waiting(node(0)), Some(Vec::new()));
        // A node that is recomputed for another one, and is damaged again when it is checked.
        assert_eq!(repeats.damaged(node(0), node(7), Damage::Corrupt), Recompute::Launch);
        assert!(!repeats.damaged_itself(node(0)), "too often");
        assert_eq!(repeats.waiting(node(0)), Some(vec![node(7)]));
    }

    #[test]
    fn a_node_whose_sources_change_runs_so_many_times() {
        let mut repeats = Recomputes::default();
        let runs = 1 + (0..10).take_while(|_| repeats.changed(node(7))).count();
        assert_eq!(runs, READINGS as usize);
    }
}
