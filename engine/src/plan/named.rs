//! What loops hand on, by the names that users give it: `rl.policy`; of one loop of a matrix, `rl.policy@seed=1`.

use std::collections::BTreeMap;

use super::graph::Plan;
use super::loops::HandedOn;
use crate::spec::same_output;

/// An output that a loop hands on, as far as it is known which round it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfLoop {
    /// Its name.
    pub name: String,
    /// The place of its node; `None` until rows decide which round it is of.
    pub place: Option<usize>,
    /// The place of its node in the last round.
    pub last: usize,
    /// The last decision about the loop, if rows decide.
    decision: Option<usize>,
}

impl OfLoop {
    /// Returns its node or, until that is known, those on which it depends.
    pub fn behind(&self) -> Vec<usize> {
        self.place.map_or_else(|| [self.last].into_iter().chain(self.decision).collect(), |place| vec![place])
    }
}

impl Plan {
    /// Returns the outputs that loops hand on under that name: one, or one of each loop of a matrix.
    pub fn of_loops(&self, name: &str) -> Vec<OfLoop> {
        let found = self.loops.handed_on.iter().filter(|(id, _)| same_output(id, name));
        found.map(|(id, output)| self.of_loop(id, output)).collect()
    }

    /// Returns all outputs that loops hand on.
    pub fn all_of_loops(&self) -> Vec<OfLoop> {
        self.loops.handed_on.iter().map(|(id, output)| self.of_loop(id, output)).collect()
    }

    /// Returns what loops hand on, by name, as `NODE` or `NODE.PORT`; `None` until rows decide which round it is of.
    pub fn handed_on_by_name(&self) -> BTreeMap<String, Option<String>> {
        let written = |(name, output): (&String, &HandedOn)| {
            let place = self.of_loop(name, output).place;
            let port = output.port.as_ref().map_or_else(String::new, |port| format!(".{port}"));
            (name.clone(), place.map(|place| format!("{}{port}", self.nodes[place].id())))
        };
        self.loops.handed_on.iter().map(written).collect()
    }

    fn of_loop(&self, name: &str, output: &HandedOn) -> OfLoop {
        let name = name.to_owned();
        let Some((index, _)) = self.loops.round_of.get(&output.last).copied() else {
            return OfLoop { name, place: Some(output.last), last: output.last, decision: None };
        };
        let repeats = &self.loops.all[index];
        let place = repeats.end.as_ref().and_then(|end| self.handed_on(output.last, index, end.hands_on));
        let decision = repeats.rounds.last().map(|round| round.decision);
        OfLoop { name, place, last: output.last, decision }
    }
}
