//! Counts the nodes that run again within one run, because their result was damaged or their sources changed while they
//! were read. No I/O.

use std::collections::BTreeMap;

/// Recomputations of a node's damaged result in one run (at most).
const REMAKES: u32 = 3;
/// Runs of a node whose sources change while they are read (at most).
pub(super) const READINGS: u32 = 3;

/// What to do about a damaged input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remake {
    /// Run the node that produced it.
    Launch,
    /// That node is already being recomputed.
    Wait,
    /// The result was recomputed too often.
    GiveUp,
}

/// Nodes that run again.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// Nodes being recomputed, each with the nodes that wait for it.
    remaking: BTreeMap<usize, Vec<usize>>,
    /// Recomputations by node.
    remade: BTreeMap<usize, u32>,
    /// Changes of a node's sources while they were read, by node.
    changed: BTreeMap<usize, u32>,
}

impl Repeats {
    /// Whether a node is being recomputed because its result was damaged.
    pub(super) fn is_remade(&self, place: usize) -> bool {
        self.remaking.contains_key(&place)
    }

    /// Records that `found_by` found the output of `from` damaged.
    pub(super) fn damaged(&mut self, from: usize, found_by: usize) -> Remake {
        let times = self.remade.entry(from).or_default();
        *times += 1;
        if *times > REMAKES {
            return Remake::GiveUp;
        }
        let waiting = self.remaking.entry(from).or_default();
        waiting.push(found_by);
        if waiting.len() > 1 { Remake::Wait } else { Remake::Launch }
    }

    /// Records that a node's sources changed while they were read; returns whether it may run again.
    pub(super) fn changed(&mut self, place: usize) -> bool {
        let count = self.changed.entry(place).or_default();
        *count += 1;
        *count < READINGS
    }

    /// Takes the nodes that wait for a recomputed node; `None` for any other node.
    pub(super) fn waiting(&mut self, place: usize) -> Option<Vec<usize>> {
        self.remaking.remove(&place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_result_is_recomputed_once_for_all_that_wait_and_not_for_ever() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.damaged(0, 1), Remake::Launch);
        assert_eq!(repeats.damaged(0, 2), Remake::Wait);
        assert!(repeats.is_remade(0));
        assert_eq!(repeats.waiting(0), Some(vec![1, 2]));
        assert_eq!((repeats.waiting(0), repeats.is_remade(0)), (None, false));
        assert_eq!(repeats.damaged(0, 1), Remake::Launch);
        assert_eq!(repeats.damaged(0, 1), Remake::GiveUp);
    }

    #[test]
    fn a_node_whose_sources_change_runs_so_many_times() {
        let mut repeats = Repeats::default();
        let runs = 1 + (0..10).take_while(|_| repeats.changed(7)).count();
        assert_eq!(runs, READINGS as usize);
    }
}
