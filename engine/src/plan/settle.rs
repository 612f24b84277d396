//! The plan once it is known how a loop ended. It is the plan of a loop with fewer rounds, with the nodes at the same places:
//! later rounds do not run, what gathers all rounds gathers those that ran, and what reads the result of the loop reads
//! that of the round that is handed on. So all keys are those of a loop with that number of rounds.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use petgraph::graph::NodeIndex;
use serde_json::Value;

use super::gather::{TABLES, name_of_table, variant_of};
use super::graph::{Input, Node, Plan, Tie};
use super::loops::{End, Loop};
use super::rejects::with_rejects;
use crate::error::OperatorError;
use crate::fingerprint::{identity_params, row_params};

/// What a node waits for that depends on how a loop ends.
pub struct Awaited<'p> {
    loops: &'p Loop,
    /// Number of its rounds that must not end it.
    rounds: usize,
    /// Whether its inputs are not known before that.
    pub inputs: bool,
}

impl Awaited<'_> {
    /// Iterates over the nodes that decide.
    pub fn decisions(&self) -> impl Iterator<Item = usize> {
        self.loops.rounds.iter().take(self.rounds).map(|round| round.decision)
    }
}

/// Why a node does not run: a loop ended before it.
pub struct NotReached<'p> {
    /// The loop.
    pub repeats: &'p Loop,
    /// The node of a later round that it needs, or another node that needs one; `None`: it is of such a round itself.
    pub needs: Option<&'p str>,
}

/// `it needs `step@round=30`, and the loop `rl` ended after round 12: …`.
impl fmt::Display for NotReached<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.needs.map_or(Ok(()), |needs| write!(f, "it needs `{needs}`, and "))?;
        write!(f, "{}", self.repeats)
    }
}

impl Plan {
    /// Returns the loops about which rows decide.
    pub fn loops(&self) -> &[Loop] {
        &self.loops.all
    }

    /// Returns the loop after whose rounds the node decides.
    pub fn decides(&self, place: usize) -> Option<&Loop> {
        self.loops.decision(place).map(|(index, _)| &self.loops.all[index])
    }

    /// Returns the places of the rounds' nodes that the loop cannot hand on any more, once its node at `decision` chose
    /// `hands_on` of the rounds so far: a later decision chooses the same one or a later round.
    pub fn passed_over(&self, decision: usize, hands_on: usize) -> Vec<usize> {
        let Some((index, last)) = self.loops.decision(decision) else { return Vec::new() };
        let rounds = (0..=last).filter(|round| *round != hands_on);
        rounds.flat_map(|round| self.loops.all[index].nodes(round)).copied().collect()
    }

    /// Returns the loop whose end keeps the node from running, and what the node needs of it.
    pub fn ended(&self, place: usize) -> Option<NotReached<'_>> {
        let index = *self.loops.ended.get(&place)?;
        let is_of_loop = self.loops.round_of.get(&place).is_some_and(|(of, _)| *of == index);
        let inputs = self.nodes[place].inputs.iter().filter(|_| !is_of_loop);
        let mut lacking = inputs.filter(|input| self.loops.ended.contains_key(&input.node));
        let needs = lacking.next().map(|input| self.nodes[input.node].id().as_str());
        Some(NotReached { repeats: &self.loops.all[index], needs })
    }

    /// Returns the decisions on which it depends whether the node runs, or with which inputs.
    pub fn awaited(&self, place: usize) -> Option<Awaited<'_>> {
        let open = |index: usize| self.loops.all[index].end.is_none();
        let inputs = self.nodes[place].inputs.iter().filter_map(|input| {
            let (index, round) = *self.loops.round_of.get(&input.node)?;
            match input.tie {
                Tie::HandedOn => Some((index, self.loops.all[index].rounds.len())),
                Tie::Gathered | Tie::Implied if self.loops.all[index].stops => Some((index, round)),
                _ => None,
            }
        });
        let own = self.loops.round_of.get(&place).copied().filter(|(index, _)| self.loops.all[*index].stops);
        let found = inputs.filter(|(index, rounds)| open(*index) && *rounds > 0).max_by_key(|(_, rounds)| *rounds);
        let found = found.map(|found| (found, true)).or(own.filter(|own| open(own.0)).map(|own| (own, false)));
        found.map(|((index, rounds), inputs)| Awaited { loops: &self.loops.all[index], rounds, inputs })
    }

    /// Returns the plan with what a decision says: why the loop ends, if it does, and the round that it hands on. `None`: the
    /// loop goes on.
    ///
    /// # Errors
    /// Fails if the loop does not have that round.
    pub fn settled(
        &self,
        decision: usize,
        why: Option<String>,
        hands_on: usize,
    ) -> Result<Option<Self>, OperatorError> {
        let Some((index, last)) = self.loops.decision(decision) else { return Ok(None) };
        let repeats = &self.loops.all[index];
        let left_out = repeats.rounds.len() - last - 1;
        // A loop that cannot stop decides only what it hands on.
        let why = why.filter(|_| repeats.stops);
        if repeats.end.is_some() || (why.is_none() && left_out > 0) {
            return Ok(None);
        }
        if hands_on > last {
            let message = format!("`{}` hands on round {hands_on}, which did not run", self.nodes[decision].id());
            return Err(OperatorError::engine(message));
        }
        let mut plan = self.clone();
        plan.loops.all[index].end = Some(End { last, left_out, hands_on, why });
        let later = repeats.rounds[last + 1..].iter();
        let later = later.flat_map(|round| round.nodes.iter().copied().chain([round.decision]));
        plan.loops.ended.extend(later.map(|place| (place, index)));
        for place in 0..plan.nodes.len() {
            if !plan.loops.ended.contains_key(&place) {
                plan.settle_node(place, index, hands_on)?;
            }
        }
        Ok(Some(plan))
    }

    fn settle_node(&mut self, place: usize, index: usize, hands_on: usize) -> Result<(), OperatorError> {
        let mut changes = Vec::new();
        for (at, input) in self.nodes[place].inputs.iter().enumerate() {
            let handed_on = (input.tie == Tie::HandedOn).then(|| self.handed_on(input.node, index, hands_on)).flatten();
            let is_ended = self.loops.ended.get(&handed_on.unwrap_or(input.node));
            match (input.tie, is_ended) {
                (Tie::Gathered, Some(_)) => changes.push((at, None)),
                (Tie::Stated | Tie::HandedOn, Some(ended)) => {
                    let ended = *ended;
                    self.loops.ended.insert(place, ended);
                    return Ok(());
                }
                _ => changes.extend(handed_on.filter(|chosen| *chosen != input.node).map(|chosen| (at, Some(chosen)))),
            }
        }
        if let Some((first, _)) = changes.first() {
            let ended = self.loops.ended.get(&self.nodes[place].inputs[*first].node).copied();
            if self.change_inputs(place, &changes)? {
                self.loops.ended.insert(place, ended.unwrap_or(index));
                return Ok(());
            }
        }
        let (before, rest) = self.nodes.split_at_mut(place);
        with_rejects(&mut rest[0], before);
        Ok(())
    }

    /// Returns the node of the round that is handed on in place of that of the last round.
    pub(super) fn handed_on(&self, node: usize, index: usize, hands_on: usize) -> Option<usize> {
        let rounds = &self.loops.all[index].rounds;
        let at = rounds.last()?.nodes.iter().position(|place| *place == node)?;
        rounds.get(hands_on)?.nodes.get(at).copied()
    }

    /// Returns the nodes that an input may read: one, or that of every round if rows choose what a loop hands on.
    pub fn may_read(&self, input: &Input) -> Vec<usize> {
        let of_loop = self.loops.round_of.get(&input.node).filter(|_| input.tie == Tie::HandedOn);
        let of_rounds = of_loop.map(|(index, _)| {
            let rounds = 0..self.loops.all[*index].rounds();
            rounds.filter_map(|round| self.handed_on(input.node, *index, round)).collect::<Vec<_>>()
        });
        of_rounds.filter(|found| !found.is_empty()).unwrap_or_else(|| vec![input.node])
    }

    /// Replaces inputs by those of other nodes, or removes them (`None`). Returns whether an input port is left without any.
    fn change_inputs(&mut self, place: usize, changes: &[(usize, Option<usize>)]) -> Result<bool, OperatorError> {
        let mut inputs = self.nodes[place].inputs.clone();
        let is_put_between = self.nodes[place].is_put_between();
        let mut tables = Tables { params: self.nodes[place].operator.params.clone() };
        let mut removed = BTreeSet::new();
        for (at, chosen) in changes {
            let input = &mut inputs[*at];
            let port = is_put_between.then(|| input.port.clone());
            let Some(chosen) = chosen else {
                if let Some(port) = &port {
                    tables.remove(port);
                }
                removed.insert(*at);
                continue;
            };
            input.node = *chosen;
            self.graph.update_edge(NodeIndex::new(*chosen), NodeIndex::new(place), ());
            if let Some(port) = port {
                variant_of(self.nodes[*chosen].id()).clone_into(&mut input.port);
                tables.rename(&port, &input.port, &self.nodes[*chosen]);
            }
        }
        let ports: BTreeSet<String> = removed.iter().map(|at| inputs[*at].port.clone()).collect();
        let mut at = 0..;
        inputs.retain(|_| at.next().is_none_or(|at| !removed.contains(&at)));
        let left = |port: &String| inputs.iter().any(|input| input.port == *port);
        let is_left = if is_put_between { !inputs.is_empty() } else { ports.iter().all(left) };
        if !is_left {
            return Ok(true);
        }
        let node = &mut self.nodes[place];
        if is_put_between {
            inputs.sort_by(|one, other| one.port.cmp(&other.port));
            bind_again(node, tables.params)?;
        }
        node.inputs = inputs;
        Ok(false)
    }
}

/// The params of a node that gathers.
struct Tables {
    params: Value,
}

impl Tables {
    fn remove(&mut self, name: &str) {
        if let Some(tables) = self.params[TABLES].as_array_mut() {
            tables.retain(|table| name_of_table(table) != Some(name));
        }
    }

    /// Names a table after another round of its node.
    fn rename(&mut self, name: &str, new: &str, chosen: &Node) {
        let tables = self.params[TABLES].as_array_mut().into_iter().flatten();
        for table in tables.filter(|table| name_of_table(table) == Some(name)) {
            table["name"] = new.into();
            let coordinates = chosen.spec.matrix.iter().enumerate();
            for (at, round) in coordinates.filter(|(_, coordinate)| coordinate.repeats.is_some()) {
                table["values"][at] = round.value.to_json();
            }
        }
    }
}

/// Gives a node other params.
fn bind_again(node: &mut Node, params: Value) -> Result<(), OperatorError> {
    let refused = |path: &str, message: &str| {
        OperatorError::engine(format!("`{}` cannot be gathered from fewer rounds: `{path}`: {message}", node.id()))
    };
    let operator = (node.entry.bind)(params).map_err(|issue| refused(&issue.path, &issue.message))?;
    if let Some(issue) = operator.declaration.issues.first() {
        return Err(refused(&issue.path, &issue.message));
    }
    let schema = (node.entry.schema)();
    node.identity_params = identity_params(&schema, &operator.params);
    node.row_params = row_params(&schema, &operator.params);
    node.main_port = operator.declaration.ports.inputs.first().map(|port| port.name.clone());
    node.operator = Arc::new(operator);
    Ok(())
}
