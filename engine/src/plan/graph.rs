//! The checked plan. It exists only if every check passed: only this folder can construct it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use indexmap::IndexMap;
use petgraph::graph::{DiGraph, NodeIndex};
use serde_json::Value;

use super::loops::Loops;
use crate::endpoint::{BudgetLimits, PeriodLimits};
use crate::node_id::NodeId;
use crate::operator::{BoundOperator, OperatorEntry, PortType, Source, texts};
use crate::spec::{NodeSpec, Overrides, Schedule, TestCase};

/// One bound input of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Input port of this node.
    pub port: String,
    /// The source node.
    pub node: NodeIndex,
    /// Output port of the source node.
    pub output: String,
    /// Type of the edge.
    pub port_type: PortType,
    /// What happens to it when a loop ends.
    pub tie: Tie,
}

/// What becomes of an input when a loop ends before the round that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// It is of one node: without that, its own node does not run.
    Stated,
    /// It is one of all variants of a node: it is left out.
    Gathered,
    /// It is what the loop hands on: it becomes that of the round that is handed on.
    HandedOn,
    /// It is the rejects behind another input: it follows that one.
    Implied,
}

/// One node, ready to run.
#[derive(Clone)]
pub struct Node {
    /// The node as written.
    pub spec: NodeSpec,
    /// The operator's registry entry.
    pub entry: OperatorEntry,
    /// The operator with its params.
    pub operator: Arc<BoundOperator>,
    /// Params that enter the key.
    pub identity_params: Value,
    /// The part of these params that enters the row keys.
    pub row_params: Value,
    /// Inputs in port order, those of services last.
    pub inputs: Vec<Input>,
    /// What a key contains of the services; null without services.
    pub services: Value,
    /// Outputs, `rejects` last.
    pub outputs: IndexMap<String, PortType>,
    /// The main input port, if any.
    pub main_port: Option<String>,
    /// External sources listed when the plan was made.
    pub sources: Vec<Source>,
}

impl Node {
    /// Returns the id of the node in the pipeline.
    pub fn id(&self) -> &NodeId {
        &self.spec.id
    }

    /// Returns the version of its operator with these params.
    pub fn version(&self) -> u32 {
        self.entry.version + self.operator.declaration.revision
    }

    /// Whether it was put between a node with a matrix and an input that takes one table.
    pub fn is_put_between(&self) -> bool {
        self.entry.gathers && self.spec.matrix.is_empty() && self.id().is_variant()
    }

    /// Returns the names of the secrets its params refer to.
    pub fn secrets(&self) -> BTreeSet<String> {
        secrets_in(&self.operator.params)
    }

    /// Returns the names of the secrets without which it cannot run.
    pub fn needed_secrets(&self) -> BTreeSet<String> {
        let answered = self.operator.declaration.answered;
        // A bound input answers the calls of this param: its secrets are not sent.
        let answered = answered.filter(|(input, _)| self.inputs.iter().any(|bound| bound.port == *input));
        let params = self.operator.params.as_object().into_iter().flatten();
        let called = params.filter(|(name, _)| answered.is_none_or(|(_, param)| param != name.as_str()));
        called.flat_map(|(_, value)| secrets_in(value)).collect()
    }

    /// Returns the default output port, if any.
    pub fn default_output(&self) -> Option<&str> {
        self.outputs.keys().next().map(String::as_str)
    }
}

fn secrets_in(params: &Value) -> BTreeSet<String> {
    let references = texts(params).into_iter().flat_map(|(_, text)| text.split("${secret:").skip(1));
    references.filter_map(|rest| Some(rest.split_once('}')?.0.to_owned())).collect()
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.spec.id).field("operator", &self.entry.name).finish_non_exhaustive()
    }
}

/// A checked plan: nodes in topological order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// The file it was read from.
    pub file: PathBuf,
    /// The params after overrides.
    pub params: Value,
    /// The overrides from the command line.
    pub overrides: Overrides,
    /// When it runs on its own.
    pub schedule: Option<Schedule>,
    /// The budget in the file.
    pub budget: BudgetLimits,
    /// The limits of all its runs in a day or month.
    pub periods: PeriodLimits,
    /// Whether a run goes on with what is finished once a budget is used up.
    pub finishes: bool,
    /// Its tests.
    pub tests: Vec<TestCase>,
    /// All nodes.
    pub nodes: Vec<Node>,
    pub(super) loops: Loops,
    pub(super) graph: DiGraph<(), ()>,
    pub(super) by_id: BTreeMap<NodeId, NodeIndex>,
}

impl Plan {
    /// Returns the currency of its endpoints' prices.
    pub fn currency(&self) -> Option<String> {
        // The plan has one currency: any endpoint names it.
        let mut endpoints = self.nodes.iter().flat_map(|node| node.operator.declaration.endpoints());
        endpoints.find_map(|endpoint| Some(endpoint.prices.as_ref()?.currency.clone()))
    }

    /// Returns the node of that id and its index.
    pub fn node(&self, id: &str) -> Option<(NodeIndex, &Node)> {
        let index = *self.by_id.get(id)?;
        Some((index, &self[index]))
    }

    /// Returns the node at that index; `None` if the index is of another plan.
    pub fn get(&self, node: NodeIndex) -> Option<&Node> {
        self.nodes.get(node.index())
    }

    /// Iterates over the nodes with their indices.
    pub fn indexed(&self) -> impl DoubleEndedIterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().enumerate().map(|(position, node)| (NodeIndex::new(position), node))
    }

    /// Iterates over the indices of the nodes.
    pub fn indices(&self) -> impl DoubleEndedIterator<Item = NodeIndex> + use<> {
        (0..self.nodes.len()).map(NodeIndex::new)
    }

    /// Returns the nodes that use outputs of this one.
    pub fn dependents(&self, node: NodeIndex) -> Vec<NodeIndex> {
        self.neighbors(node, petgraph::Direction::Outgoing)
    }

    /// Returns the nodes whose outputs this one uses.
    pub fn dependencies(&self, node: NodeIndex) -> Vec<NodeIndex> {
        self.neighbors(node, petgraph::Direction::Incoming)
    }

    fn neighbors(&self, node: NodeIndex, direction: petgraph::Direction) -> Vec<NodeIndex> {
        let mut found: Vec<NodeIndex> = self.graph.neighbors_directed(node, direction).collect();
        // A node may use several outputs of another one.
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl std::ops::Index<NodeIndex> for Plan {
    type Output = Node;

    fn index(&self, node: NodeIndex) -> &Node {
        &self.nodes[node.index()]
    }
}
