//! Decides which folders of a loop's middle rounds a run may release, and when. No I/O.
//!
//! A node is *live* while its inputs may still be read in this run. Before it is settled, it reads them. After that, it
//! reads them again only to make its own folders again: if these are gone and a live node uses them. The folders of a
//! settled node can go when no live node uses them.
//!
//! Each node counts the live inputs that take its folders, so a change costs as much as the edges that it changes, and
//! a chain of released models that is made again for several nodes is walked once.
//!
//! A round stays that the loop may still hand on, and so does the chosen one, whether it is read or not. Each decision
//! rules rounds out.

use std::collections::{BTreeMap, BTreeSet};

use crate::node_id::{NodeId, Round};
use crate::operator::{Effect, PortType, Repeatability};
use crate::plan::{Node, NodeIndex, Plan, Tie};

/// Which folders can go.
#[derive(Debug, Default)]
pub(crate) struct ReleasePolicy {
    /// By index; empty if no loop of the plan has `keep:`.
    nodes: Vec<Folders>,
    /// Nodes that read what a loop hands on, by each node that it may hand on.
    readers: BTreeMap<NodeIndex, Vec<NodeIndex>>,
}

#[derive(Debug, Default)]
struct Folders {
    /// The nodes whose folders it uses: one for each input, or all that a loop may hand on there.
    takes: Vec<NodeIndex>,
    /// Number of inputs of live nodes that take its folders.
    uses: usize,
    is_settled: bool,
    /// Whether some of its folders are not here.
    lacks: bool,
    /// Whether some of the folders that may go are here.
    has: bool,
    /// Whether the rows of its loop chose its round to be handed on, or may still do so.
    is_candidate: bool,
    rule: Option<Rule>,
    /// The node for whose folders this one is the first of the later rounds that stay.
    opens: Option<NodeIndex>,
}

/// The folders of a node that are not kept.
#[derive(Debug)]
struct Rule {
    ports: Vec<String>,
    /// The same node in the first of the later rounds that stay.
    after: NodeIndex,
}

impl ReleasePolicy {
    /// `asked`: nodes whose folders must stay.
    pub(crate) fn of(plan: &Plan, asked: &BTreeSet<NodeIndex>) -> Self {
        if plan.nodes.iter().all(|node| node.spec.keep.is_none()) {
            return Self::default();
        }
        let mut nodes: Vec<Folders> = plan.nodes.iter().map(|_| Folders::default()).collect();
        let mut readers: BTreeMap<NodeIndex, Vec<NodeIndex>> = BTreeMap::new();
        let mut used: BTreeSet<(NodeIndex, &str)> = BTreeSet::new();
        for (index, node) in plan.indexed() {
            for input in node.inputs.iter().filter(|input| matches!(input.port_type, PortType::Tree(_))) {
                // Of a loop whose rows choose the round, any round may be read until they rule it out.
                for maker in plan.may_read(input) {
                    if input.tie == Tie::HandedOn {
                        readers.entry(maker).or_default().push(index);
                    }
                    nodes[index.index()].takes.push(maker);
                    nodes[maker.index()].uses += 1;
                    used.insert((maker, &input.output));
                }
            }
        }
        for (index, node) in plan.indexed() {
            if asked.contains(&index) {
                continue;
            }
            let Some(after) = after(plan, node) else { continue };
            let ports = node.outputs.keys().filter(|port| used.contains(&(index, port.as_str())));
            let ports: Vec<String> = ports.cloned().collect();
            if !ports.is_empty() {
                nodes[index.index()].rule = Some(Rule { ports, after });
                nodes[after.index()].opens = Some(index);
            }
        }
        for repeats in plan.loops() {
            for round in 0..repeats.rounds() {
                for node in repeats.nodes(Round(round)) {
                    nodes[node.index()].is_candidate = true;
                }
            }
        }
        Self { nodes, readers }
    }

    /// Whether nothing is ever released.
    pub(super) fn is_idle(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the ports of a node's folders that may be released.
    pub(crate) fn ports(&self, index: NodeIndex) -> &[String] {
        match self.nodes.get(index.index()) {
            Some(Folders { rule: Some(rule), .. }) => &rule.ports,
            _ => &[],
        }
    }

    /// Records that a node has a result. `lacks`: some of its folders are not here; `has`: some of those that may go
    /// are. Returns the nodes whose folders can go now.
    pub(crate) fn settle(&mut self, index: NodeIndex, lacks: bool, has: bool) -> Vec<NodeIndex> {
        let was_live = self.is_live(index);
        let Some(node) = self.nodes.get_mut(index.index()) else { return Vec::new() };
        (node.is_settled, node.lacks, node.has) = (true, lacks, has);
        let mut changed = vec![index];
        changed.extend(node.opens);
        if was_live && !self.is_live(index) {
            self.lower_all(self.nodes[index.index()].takes.clone(), &mut changed);
        }
        self.those_that_can_go(changed)
    }

    fn those_that_can_go(&self, mut indices: Vec<NodeIndex>) -> Vec<NodeIndex> {
        indices.retain(|index| self.can_go(*index));
        indices.sort_unstable();
        indices.dedup();
        indices
    }

    /// Records that a settled node runs again.
    pub(super) fn reopen(&mut self, index: NodeIndex) {
        let was_live = self.is_live(index);
        let Some(node) = self.nodes.get_mut(index.index()) else { return };
        node.is_settled = false;
        if was_live {
            return;
        }
        let mut makers = self.nodes[index.index()].takes.clone();
        // Adds a use of each of these makers, and those of the makers that become live for that reason: their folders are
        // gone, so they are made again.
        while let Some(maker) = makers.pop() {
            let was_live = self.is_live(maker);
            self.nodes[maker.index()].uses += 1;
            if !was_live && self.is_live(maker) {
                makers.extend(&self.nodes[maker.index()].takes);
            }
        }
    }

    /// Records that a loop does not hand on the rounds of these nodes. Returns the nodes whose folders can go now.
    pub(super) fn rule_out(&mut self, indices: Vec<NodeIndex>) -> Vec<NodeIndex> {
        let mut changed = Vec::new();
        for index in indices {
            // Each decision rules out the rounds of the earlier ones again.
            match self.nodes.get_mut(index.index()) {
                Some(node) if node.is_candidate => node.is_candidate = false,
                _ => continue,
            }
            changed.push(index);
            for reader in self.readers.remove(&index).unwrap_or_default() {
                let takes = &mut self.nodes[reader.index()].takes;
                if let Some(position) = takes.iter().position(|maker| *maker == index) {
                    takes.swap_remove(position);
                    if self.is_live(reader) {
                        self.lower_all(vec![index], &mut changed);
                    }
                }
            }
        }
        self.those_that_can_go(changed)
    }

    /// Records that a node does not run, because a loop ended: it will read nothing. Returns the nodes whose folders
    /// can go now.
    pub(super) fn leave_out(&mut self, index: NodeIndex) -> Vec<NodeIndex> {
        let mut changed = Vec::new();
        if let Some(node) = self.nodes.get_mut(index.index())
            && !node.is_settled
        {
            // It is never settled: without makers, it can stay live.
            let makers = std::mem::take(&mut node.takes);
            self.lower_all(makers, &mut changed);
        }
        self.those_that_can_go(changed)
    }

    /// Records that the folders of a node were released.
    pub(super) fn released(&mut self, index: NodeIndex) {
        if let Some(node) = self.nodes.get_mut(index.index()) {
            (node.lacks, node.has) = (true, false);
        }
    }

    /// Records that the folders of a node stay here.
    pub(crate) fn retained(&mut self, index: NodeIndex) {
        if let Some(node) = self.nodes.get_mut(index.index()) {
            node.has = false;
        }
    }

    /// Whether the folders of a node can go now.
    pub(super) fn can_go(&self, index: NodeIndex) -> bool {
        let Some(node) = self.nodes.get(index.index()) else { return false };
        let Some(rule) = &node.rule else { return false };
        let is_free = node.is_settled && node.uses == 0 && !node.is_candidate;
        is_free && node.has && self.nodes.get(rule.after.index()).is_some_and(|after| after.is_settled)
    }

    fn is_live(&self, index: NodeIndex) -> bool {
        self.nodes.get(index.index()).is_some_and(|node| !node.is_settled || (node.lacks && node.uses > 0))
    }

    /// Takes away a use of each of these makers, and those of the makers that are not live any more for that reason.
    fn lower_all(&mut self, mut makers: Vec<NodeIndex>, changed: &mut Vec<NodeIndex>) {
        while let Some(maker) = makers.pop() {
            let was_live = self.is_live(maker);
            let node = &mut self.nodes[maker.index()];
            node.uses = node.uses.saturating_sub(1);
            if node.uses == 0 {
                changed.push(maker);
            }
            if was_live && !self.is_live(maker) {
                makers.extend(&self.nodes[maker.index()].takes);
            }
        }
    }
}

/// Returns the same node in the first of the later rounds that stay; `None` if its own folders stay: by `keep:`,
/// because they could not be made again, or because no such round is in the plan.
fn after(plan: &Plan, node: &Node) -> Option<NodeIndex> {
    let (keep, (of_loop, round)) = (node.spec.keep?, node.spec.round()?);
    let declaration = &node.operator.declaration;
    let is_repeatable = declaration.effect != Effect::External && declaration.repeatability > Repeatability::Device;
    if keep.keeps(round) || !is_repeatable || node.spec.freeze || !declaration.destinations().is_empty() {
        return None;
    }
    let mut coordinates = Vec::new();
    for coordinate in &node.spec.matrix {
        let name = match &coordinate.repeats {
            Some(repeats) if repeats == of_loop => (round + keep.last).to_string(),
            _ => coordinate.name.clone(),
        };
        coordinates.push((coordinate.key.clone(), name));
    }
    let id = NodeId::new(node.id().name(), &coordinates);
    plan.node(&id).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(position: usize) -> NodeIndex {
        NodeIndex::new(position)
    }

    fn nodes(positions: &[usize]) -> Vec<NodeIndex> {
        positions.iter().map(|position| node(*position)).collect()
    }

    /// A loop of `rounds` models, each made from the one before; model `k` has index `2 k`, and what looks at it `2 k +
    /// 1`.
    fn chain(rounds: usize, last: usize) -> ReleasePolicy {
        let mut nodes: Vec<Folders> = (0..2 * rounds).map(|_| Folders::default()).collect();
        for round in 0..rounds {
            if round > 0 {
                nodes[2 * round].takes.push(node(2 * (round - 1)));
                nodes[2 * (round - 1)].uses += 1;
            }
            nodes[2 * round + 1].takes.push(node(2 * round));
            nodes[2 * round].uses += 1;
            if round + last < rounds {
                let after = 2 * (round + last);
                nodes[2 * round].rule = Some(Rule { ports: vec!["model".to_owned()], after: node(after) });
                nodes[after].opens = Some(node(2 * round));
            }
        }
        ReleasePolicy { nodes, ..ReleasePolicy::default() }
    }

    #[test]
    fn a_model_goes_when_all_that_use_it_are_done_and_enough_rounds_followed() {
        let mut policy = chain(5, 2);
        for (index, gone) in
            [(0, vec![]), (1, vec![]), (2, vec![]), (3, vec![]), (4, vec![0]), (6, vec![2]), (5, vec![])]
        {
            assert_eq!(policy.settle(node(index), false, true), nodes(&gone), "after {index}");
            for index in gone {
                policy.released(node(index));
            }
        }
        assert_eq!(policy.settle(node(7), false, false), nodes(&[]));
        assert_eq!(policy.settle(node(8), false, true), nodes(&[4]));
        assert!(!policy.can_go(node(6)) && !policy.can_go(node(8)), "the last two stay");
    }

    /// A loop of four rounds whose rows choose the round that the last node reads.
    fn choosing() -> ReleasePolicy {
        let mut policy = chain(4, 1);
        let reader = policy.nodes.len();
        for index in 0..reader {
            policy.nodes[index].is_candidate = true;
        }
        let models: Vec<NodeIndex> = (0..reader).step_by(2).map(node).collect();
        for index in &models {
            policy.nodes[index.index()].uses += 1;
            policy.readers.insert(*index, nodes(&[reader]));
        }
        policy.nodes.push(Folders { takes: models, ..Folders::default() });
        policy
    }

    #[test]
    fn rounds_that_are_ruled_out_go_and_the_chosen_one_stays() {
        let mut policy = choosing();
        let none = nodes(&[]);
        for index in 0..4 {
            assert_eq!(policy.settle(node(index), false, true), none, "{index}: any round may be chosen");
        }
        assert_eq!(policy.rule_out(nodes(&[0, 1])), nodes(&[0]));
        policy.released(node(0));
        assert_eq!(
            (policy.settle(node(4), false, true), policy.settle(node(5), false, false)),
            (none.clone(), none.clone())
        );
        assert_eq!(policy.rule_out(nodes(&[0, 1, 4, 5])), none, "no later round is there yet");
        assert_eq!(policy.settle(node(6), false, true), nodes(&[4]));
        assert_eq!(policy.settle(node(7), false, false), none);
        assert_eq!(policy.rule_out(nodes(&[0, 1, 4, 5, 6, 7])), none, "the last one stays");
        assert_eq!(policy.settle(node(8), false, false), none);
        assert!(!policy.can_go(node(2)), "the chosen one stays, though it was read");
    }

    #[test]
    fn what_is_left_out_holds_nothing() {
        let mut policy = chain(3, 1);
        for index in 0..4 {
            policy.settle(node(index), false, true);
        }
        // The loop ended after round 1; an odd reader of model 0 is left out as well.
        policy.nodes[0].uses += 1;
        policy.nodes[5].takes.push(node(0));
        assert!(!policy.can_go(node(0)));
        assert_eq!((policy.leave_out(node(4)), policy.leave_out(node(5))), (nodes(&[]), nodes(&[0])));
        assert!(!policy.can_go(node(2)), "no later round has a result");
        assert_eq!(policy.leave_out(node(5)), nodes(&[]), "once");
    }

    #[test]
    fn what_is_needed_to_make_a_released_model_again_stays_until_it_is() {
        let rounds = 6;
        let mut policy = chain(rounds, 1);
        // All models but the last are released and cached; what looks at them runs anew.
        for round in 0..rounds {
            assert!(policy.settle(node(2 * round), round + 1 < rounds, round + 1 == rounds).is_empty());
        }
        // For what looks at model 3, models 0 to 3 are made again.
        for round in (0..4).rev() {
            policy.reopen(node(2 * round));
        }
        for round in 0..4 {
            assert!(policy.settle(node(2 * round), false, true).is_empty(), "models 0 to {round} are still looked at");
        }
        let none = policy.settle(node(7), false, false);
        assert!(none.is_empty(), "model 4 is not here and is looked at: model 3 is needed to make it again");
        policy.reopen(node(8));
        assert_eq!(policy.settle(node(8), false, true), nodes(&[6]));
    }

    /// Six rounds that are done; models 0 to 3 were released.
    fn done() -> ReleasePolicy {
        let mut policy = chain(6, 2);
        for index in 0..12 {
            for gone in policy.settle(node(index), false, index % 2 == 0) {
                policy.released(gone);
            }
        }
        assert!([0, 2, 4, 6].iter().all(|index| policy.nodes[*index].lacks));
        policy
    }

    #[test]
    fn a_settled_node_that_runs_again_keeps_what_makes_its_released_model_again() {
        let mut policy = done();
        // What looks at model 2 was damaged: for it, models 2, 1 and 0 are made again.
        for index in [5, 4, 2, 0] {
            policy.reopen(node(index));
        }
        assert!(policy.settle(node(0), false, true).is_empty(), "model 1 is made from it");
        assert!(policy.settle(node(2), false, true).is_empty(), "model 2 is made from it");
        assert_eq!(policy.settle(node(4), false, true), nodes(&[0, 2]));
        policy.released(node(0));
        policy.released(node(2));
        assert_eq!(policy.settle(node(5), false, false), nodes(&[4]));
    }

    #[test]
    fn a_released_model_that_is_made_again_takes_no_use_of_another_node_away() {
        let mut policy = done();
        for index in [5, 3, 4, 2, 0] {
            policy.reopen(node(index));
        }
        for index in [0, 2] {
            assert!(policy.settle(node(index), false, true).is_empty());
        }
        assert_eq!(policy.settle(node(4), false, true), nodes(&[0]), "model 1 is still looked at");
        policy.released(node(0));
        assert_eq!(policy.settle(node(3), false, false), nodes(&[2]));
        policy.released(node(2));
        assert_eq!(policy.settle(node(5), false, false), nodes(&[4]));
        policy.released(node(4));
        assert!((0..12).all(|index| !policy.is_live(node(index)) && policy.nodes[index].uses == 0));
    }

    #[test]
    fn a_long_chain_is_walked_without_recursion_and_each_edge_once() {
        let rounds = 100_000;
        let mut policy = chain(rounds, 1);
        for index in 0..2 * rounds - 1 {
            policy.settle(node(index), index % 2 == 0, false);
        }
        assert!(policy.is_live(node(0)), "the last look is still to come, and nothing is here");
        let last = node(2 * rounds - 1);
        policy.settle(last, false, false);
        assert!((0..2 * rounds).all(|index| !policy.is_live(node(index)) && policy.nodes[index].uses == 0));
        policy.reopen(last);
        assert!((0..rounds).all(|round| policy.is_live(node(2 * round)) && policy.nodes[2 * round].uses == 1));
        policy.settle(last, false, false);
        assert!((0..2 * rounds).all(|index| !policy.is_live(node(index)) && policy.nodes[index].uses == 0));
    }
}
