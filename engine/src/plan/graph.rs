//! The checked plan. It exists only if every check passed: its constructor is private to this folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use indexmap::IndexMap;
use petgraph::graph::{DiGraph, NodeIndex};
use serde_json::Value;

use crate::operator::{BoundOperator, BudgetLimits, OperatorEntry, PortType, Source};
use crate::spec::{NodeSpec, Overrides, Schedule};

/// One bound input of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The port of this node.
    pub port: String,
    /// Place in the plan of the node it comes from.
    pub node: usize,
    /// The output port there.
    pub output: String,
    /// Its type.
    pub port_type: PortType,
}

/// One node, ready to run.
pub struct Node {
    /// As written.
    pub spec: NodeSpec,
    /// Its operator.
    pub entry: OperatorEntry,
    /// The operator with its params.
    pub operator: BoundOperator,
    /// Params that enter the key.
    pub identity_params: Value,
    /// Of these, the ones that enter the keys of its rows.
    pub row_params: Value,
    /// Inputs in port order.
    pub inputs: Vec<Input>,
    /// Outputs, `rejects` last.
    pub outputs: IndexMap<String, PortType>,
    /// The main input port, if it has one.
    pub main_port: Option<String>,
    /// Outside files that entered the key when the plan was made.
    pub sources: Vec<Source>,
}

impl Node {
    /// Its id in the pipeline.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.spec.id
    }

    /// Names of the secrets that its params refer to.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<String> {
        let (mut names, mut pending) = (BTreeSet::new(), vec![&self.operator.params]);
        while let Some(value) = pending.pop() {
            match value {
                Value::String(text) => names.extend(secret_names(text).map(str::to_owned)),
                Value::Array(items) => pending.extend(items),
                Value::Object(fields) => pending.extend(fields.values()),
                _ => {}
            }
        }
        names
    }

    /// Its default output port, if it has one.
    #[must_use]
    pub fn default_output(&self) -> Option<&str> {
        self.outputs.keys().next().map(String::as_str)
    }
}

/// Names of the `${secret:NAME}` in a text.
fn secret_names(text: &str) -> impl Iterator<Item = &str> {
    text.split("${secret:").skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.spec.id).field("operator", &self.entry.name).finish_non_exhaustive()
    }
}

/// A checked plan: nodes in an order in which every node stands after all it needs.
#[derive(Debug)]
pub struct Plan {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) params: Value,
    pub(super) overrides: Overrides,
    pub(super) schedule: Option<Schedule>,
    pub(super) budget: BudgetLimits,
    pub(super) nodes: Vec<Node>,
    pub(super) graph: DiGraph<(), ()>,
    pub(super) by_id: BTreeMap<String, usize>,
}

impl Plan {
    /// The pipeline's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The currency in which its endpoints' prices are told.
    #[must_use]
    pub fn currency(&self) -> Option<String> {
        let mut endpoints = self.nodes.iter().filter_map(|node| node.operator.declaration.endpoint.as_ref());
        endpoints.find_map(|endpoint| Some(endpoint.prices.as_ref()?.currency.clone()))
    }

    /// What a run of it may spend, as it is written.
    #[must_use]
    pub fn budget(&self) -> BudgetLimits {
        self.budget
    }

    /// The file it was read from.
    #[must_use]
    pub fn file(&self) -> &std::path::Path {
        &self.file
    }

    /// Params after overrides.
    #[must_use]
    pub fn params(&self) -> &Value {
        &self.params
    }

    /// What the command line changed in them.
    #[must_use]
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// When it runs by itself.
    #[must_use]
    pub fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_ref()
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of that id, with its place.
    #[must_use]
    pub fn node(&self, id: &str) -> Option<(usize, &Node)> {
        let place = *self.by_id.get(id)?;
        Some((place, &self.nodes[place]))
    }

    /// Places of the nodes that use outputs of this one.
    #[must_use]
    pub fn dependents(&self, node: usize) -> Vec<usize> {
        self.neighbors(node, petgraph::Direction::Outgoing)
    }

    /// Places of the nodes whose outputs this one uses.
    #[must_use]
    pub fn dependencies(&self, node: usize) -> Vec<usize> {
        self.neighbors(node, petgraph::Direction::Incoming)
    }

    fn neighbors(&self, node: usize, direction: petgraph::Direction) -> Vec<usize> {
        let mut places: Vec<usize> =
            self.graph.neighbors_directed(NodeIndex::new(node), direction).map(NodeIndex::index).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}
