//! What loops hand on, by the names that users give it: `rl.policy`; of one loop of a matrix, `rl.policy@seed=1`.

use petgraph::graph::NodeIndex;
use std::collections::BTreeMap;

use super::graph::Plan;
use super::loops::HandedOn;
use crate::spec::same_output;

/// An output that a loop hands on, as far as it is known which round it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfLoop {
    /// Its name.
    pub name: String,
    /// Its node; `None` until rows decide which round it is of.
    pub node: Option<NodeIndex>,
    /// Its node in the last round.
    pub last: NodeIndex,
    /// The last decision about the loop, if rows decide.
    decision: Option<NodeIndex>,
}

impl OfLoop {
    /// Returns its node or, until that is known, those on which it depends.
    pub(crate) fn behind(&self) -> Vec<NodeIndex> {
        match self.node {
            Some(node) => vec![node],
            None => [self.last].into_iter().chain(self.decision).collect(),
        }
    }
}

impl Plan {
    /// Returns the outputs that loops hand on under that name: one, or one of each loop of a matrix.
    pub(crate) fn of_loops(&self, name: &str) -> Vec<OfLoop> {
        let found = self.loops.handed_on.iter().filter(|(id, _)| same_output(id, name));
        found.map(|(id, output)| self.of_loop(id, output)).collect()
    }

    /// Returns all outputs that loops hand on.
    pub(crate) fn all_of_loops(&self) -> Vec<OfLoop> {
        self.loops.handed_on.iter().map(|(id, output)| self.of_loop(id, output)).collect()
    }

    /// Returns what loops hand on, by name, as `NODE` or `NODE.PORT`; `None` until rows decide which round it is of.
    pub fn handed_on_by_name(&self) -> BTreeMap<String, Option<String>> {
        let mut names = BTreeMap::new();
        for (name, output) in &self.loops.handed_on {
            let written = match (self.of_loop(name, output).node, &output.port) {
                (Some(node), Some(port)) => Some(format!("{}.{port}", self[node].id())),
                (Some(node), None) => Some(self[node].id().to_string()),
                (None, _) => None,
            };
            names.insert(name.clone(), written);
        }
        names
    }

    fn of_loop(&self, name: &str, output: &HandedOn) -> OfLoop {
        let (name, last) = (name.to_owned(), output.last);
        let Some(place) = self.loops.round_of.get(&last) else {
            // Rows decide nothing about this loop: it hands on its last round.
            return OfLoop { name, node: Some(last), last, decision: None };
        };
        let repeats = &self.loops.all[place.of.0];
        // Unknown until the loop has ended.
        let node = repeats.end.as_ref().and_then(|end| self.loops.in_round(last, place.of, end.hands_on));
        let decision = repeats.rounds.last().map(|round| round.decision);
        OfLoop { name, node, last, decision }
    }
}
