//! The plan of a loop that has ended. It has the same nodes at the same indices, and the keys of a loop with that many
//! rounds: later rounds do not run, what gathers all rounds gathers those that ran, and what reads the loop's result reads
//! that of the round that is handed on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use petgraph::graph::NodeIndex;
use serde_json::Value;

use super::gather::{TABLES, variant_of};
use super::graph::{Input, Node, Plan, Tie};
use super::loops::{End, InLoop, Loop, LoopIndex};
use super::rejects::with_rejects;
use crate::error::OperatorError;
use crate::fingerprint::{identity_params, row_params};
use crate::node_id::{NodeId, Round};
use crate::operator::ParamIssue;

/// What a node waits for that depends on how a loop ends.
pub struct Awaited<'p> {
    of: &'p Loop,
    /// Number of its rounds that must not end it.
    rounds: usize,
    /// Whether its inputs are not known before that.
    pub inputs: bool,
}

impl Awaited<'_> {
    /// Iterates over the nodes that decide.
    pub fn decisions(&self) -> impl Iterator<Item = NodeIndex> {
        self.of.rounds.iter().take(self.rounds).map(|round| round.decision)
    }
}

/// Why a node does not run: a loop ended before it.
pub(crate) struct NotReached<'p> {
    /// The loop.
    pub repeats: &'p Loop,
    /// The node of a later round that it needs, or another node that needs one; `None`: it is of such a round itself.
    pub needs: Option<&'p NodeId>,
}

/// `it needs `step@round=30`, and the loop `rl` ended after round 12: …`.
impl fmt::Display for NotReached<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(needs) = self.needs {
            write!(f, "it needs `{needs}`, and ")?;
        }
        write!(f, "{}", self.repeats)
    }
}

/// By place of an input: the node that it reads once a loop has ended, which is of the round that is handed on. `None`:
/// nothing is left to read.
type Changes = BTreeMap<usize, Option<NodeIndex>>;

impl Plan {
    /// Returns the loops about which rows decide.
    pub fn loops(&self) -> &[Loop] {
        &self.loops.all
    }

    /// Returns the loop after whose rounds the node decides.
    pub fn decides(&self, node: NodeIndex) -> Option<&Loop> {
        self.loops.decision(node).map(|place| &self.loops.all[place.of.0])
    }

    /// Returns the nodes of the rounds that the loop cannot hand on any more, once its node `decision` chose `hands_on` of
    /// the rounds so far: a later decision chooses the same one or a later round.
    pub fn passed_over(&self, decision: NodeIndex, hands_on: Round) -> Vec<NodeIndex> {
        let Some(InLoop { of, round: last }) = self.loops.decision(decision) else { return Vec::new() };
        let mut nodes = Vec::new();
        for round in (0..=last.0).map(Round).filter(|round| *round != hands_on) {
            nodes.extend_from_slice(self.loops.all[of.0].nodes(round));
        }
        nodes
    }

    /// Returns the loop whose end keeps the node from running, and what the node needs of it.
    pub(crate) fn ended(&self, node: NodeIndex) -> Option<NotReached<'_>> {
        let ended = *self.loops.ended.get(&node)?;
        let repeats = &self.loops.all[ended.0];
        if self.loops.round_of.get(&node).is_some_and(|place| place.of == ended) {
            return Some(NotReached { repeats, needs: None });
        }
        let needs = self[node].inputs.iter().find(|input| self.loops.ended.contains_key(&input.node));
        Some(NotReached { repeats, needs: needs.map(|input| self[input.node].id()) })
    }

    /// Returns the decisions on which it depends whether the node runs, or with which inputs.
    pub fn awaited(&self, node: NodeIndex) -> Option<Awaited<'_>> {
        let mut found: Option<Awaited<'_>> = None;
        for input in &self[node].inputs {
            let Some(place) = self.loops.round_of.get(&input.node) else { continue };
            let of = &self.loops.all[place.of.0];
            let rounds = match input.tie {
                Tie::HandedOn => of.rounds(),
                Tie::Gathered | Tie::Implied if of.stops => place.round.0,
                _ => continue,
            };
            // Of several inputs, the one that waits longest decides.
            let is_more = found.as_ref().is_none_or(|found| rounds >= found.rounds);
            if of.end.is_none() && rounds > 0 && is_more {
                found = Some(Awaited { of, rounds, inputs: true });
            }
        }
        if found.is_some() {
            return found;
        }
        let place = self.loops.round_of.get(&node)?;
        let of = &self.loops.all[place.of.0];
        (of.stops && of.end.is_none()).then_some(Awaited { of, rounds: place.round.0, inputs: false })
    }

    /// Returns the plan with what a decision says: why the loop ends, if it does, and the round that it hands on. `None`: the
    /// loop goes on.
    ///
    /// # Errors
    /// Fails if the loop does not have that round.
    pub fn settled(
        &self,
        decision: NodeIndex,
        why: Option<String>,
        hands_on: Round,
    ) -> Result<Option<Self>, OperatorError> {
        let Some(InLoop { of, round: last }) = self.loops.decision(decision) else { return Ok(None) };
        let repeats = &self.loops.all[of.0];
        let left_out = repeats.rounds() - last.0 - 1;
        // A loop that cannot stop decides only what it hands on.
        let why = why.filter(|_| repeats.stops);
        if repeats.end.is_some() || (why.is_none() && left_out > 0) {
            return Ok(None);
        }
        if hands_on > last {
            let message = format!("`{}` hands on round {hands_on}, which did not run", self[decision].id());
            return Err(OperatorError::engine(message));
        }
        let mut plan = self.clone();
        plan.loops.all[of.0].end = Some(End { last, left_out, hands_on, why });
        for round in &repeats.rounds[last.0 + 1..] {
            for node in round.nodes.iter().copied().chain([round.decision]) {
                plan.loops.ended.insert(node, of);
            }
        }
        // In order: what a node reads is settled before it.
        for node in plan.indices() {
            if !plan.loops.ended.contains_key(&node) {
                plan.settle_node(node, of, hands_on)?;
            }
        }
        Ok(Some(plan))
    }

    fn settle_node(&mut self, node: NodeIndex, of: LoopIndex, hands_on: Round) -> Result<(), OperatorError> {
        let mut changes = Changes::new();
        let mut first_changed = None;
        for (at, input) in self[node].inputs.iter().enumerate() {
            let mut reads = input.node;
            if input.tie == Tie::HandedOn {
                reads = self.loops.in_round(input.node, of, hands_on).unwrap_or(input.node);
            }
            let change = match (input.tie, self.loops.ended.get(&reads)) {
                (Tie::Gathered, Some(_)) => None,
                // What it needs did not run: neither does it.
                (Tie::Stated | Tie::HandedOn, Some(ended)) => {
                    let ended = *ended;
                    self.loops.ended.insert(node, ended);
                    return Ok(());
                }
                _ if reads != input.node => Some(reads),
                _ => continue,
            };
            first_changed.get_or_insert(input.node);
            changes.insert(at, change);
        }
        if let Some(first) = first_changed {
            let ended = self.loops.ended.get(&first).copied();
            if self.change_inputs(node, &changes)? {
                self.loops.ended.insert(node, ended.unwrap_or(of));
                return Ok(());
            }
        }
        // Where its rows come from is found in the nodes before it, which are settled already.
        let (before, rest) = self.nodes.split_at_mut(node.index());
        with_rejects(&mut rest[0], before);
        Ok(())
    }

    /// Returns the nodes that an input may read: one, or that of every round if rows choose what a loop hands on.
    pub fn may_read(&self, input: &Input) -> Vec<NodeIndex> {
        let mut found = Vec::new();
        if input.tie == Tie::HandedOn
            && let Some(place) = self.loops.round_of.get(&input.node)
        {
            for round in 0..self.loops.all[place.of.0].rounds() {
                found.extend(self.loops.in_round(input.node, place.of, Round(round)));
            }
        }
        if found.is_empty() {
            found.push(input.node);
        }
        found
    }

    /// Replaces inputs by those of other nodes, or removes them. Returns whether an input port is left without any.
    fn change_inputs(&mut self, node: NodeIndex, changes: &Changes) -> Result<bool, OperatorError> {
        let is_put_between = self[node].is_put_between();
        let mut params = self[node].operator.params.clone();
        let mut inputs = Vec::with_capacity(self[node].inputs.len());
        let mut emptied: BTreeSet<String> = BTreeSet::new();
        for (at, mut input) in self[node].inputs.clone().into_iter().enumerate() {
            match changes.get(&at) {
                None => inputs.push(input),
                Some(None) => {
                    if is_put_between && let Some(tables) = params[TABLES].as_array_mut() {
                        tables.retain(|table| table["name"] != input.port);
                    }
                    emptied.insert(input.port);
                }
                Some(Some(chosen)) => {
                    input.node = *chosen;
                    self.graph.update_edge(*chosen, node, ());
                    if is_put_between {
                        // The table is named after the round that it is of.
                        let port = variant_of(self[*chosen].id()).to_owned();
                        rename_table(&mut params, &input.port, &port, &self[*chosen]);
                        input.port = port;
                    }
                    inputs.push(input);
                }
            }
        }
        for input in &inputs {
            emptied.remove(&input.port);
        }
        let lacks_inputs = if is_put_between { inputs.is_empty() } else { !emptied.is_empty() };
        if lacks_inputs {
            return Ok(true);
        }
        let node = &mut self.nodes[node.index()];
        if is_put_between {
            // As when the node was bound: the order of its inputs is in the key.
            inputs.sort_by(|one, other| one.port.cmp(&other.port));
            bind_again(node, params)?;
        }
        node.inputs = inputs;
        Ok(false)
    }
}

/// Names a table in the params of a node that gathers after another round of its node.
fn rename_table(params: &mut Value, name: &str, new: &str, chosen: &Node) {
    for table in params[TABLES].as_array_mut().into_iter().flatten() {
        if table["name"] != name {
            continue;
        }
        table["name"] = new.into();
        for (column, coordinate) in chosen.spec.matrix.iter().enumerate() {
            if coordinate.repeats.is_some() {
                table["values"][column] = coordinate.value.to_json();
            }
        }
    }
}

/// Gives a node other params.
fn bind_again(node: &mut Node, params: Value) -> Result<(), OperatorError> {
    let mut operator = (node.entry.bind)(params);
    // The plan was checked with all tables: fewer may raise an issue that it did not have.
    if let Ok(bound) = &operator
        && let Some(issue) = bound.declaration.issues.first()
    {
        operator = Err(issue.clone());
    }
    let operator = operator.map_err(|ParamIssue { path, message, .. }| {
        OperatorError::engine(format!("`{}` cannot be gathered from fewer rounds: `{path}`: {message}", node.id()))
    })?;
    let schema = (node.entry.schema)();
    node.identity_params = identity_params(&schema, &operator.params);
    node.row_params = row_params(&schema, &operator.params);
    node.main_port = operator.declaration.ports.inputs.first().map(|port| port.name.clone());
    node.operator = Arc::new(operator);
    Ok(())
}
