//! A pipeline as written: nodes with references and resolved params, not yet checked against operators.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use searchmill_schemas::named;
use serde::{Deserialize, Serialize};

use super::checks::CheckSpec;
use super::coordinate;
use super::coordinate::Coordinate;
use super::pipeline_test::TestCase;
use super::schedule::Schedule;
use super::value::Spanned;
use crate::diagnostic::Span;
use crate::endpoint::{BudgetLimits, PeriodLimits};
use crate::node_id::NodeId;
use crate::operator::RetryPolicy;

/// A pipeline as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// The files it was read from: its own, included ones, those of `--params`.
    pub files: Vec<PathBuf>,
    /// Nodes in the order written; a matrix is expanded in place.
    pub nodes: Vec<NodeSpec>,
    /// Params after overrides, with every `${…}` resolved (secrets stay references).
    pub params: serde_json::Value,
    /// The command line's overrides of params.
    pub overrides: Overrides,
    /// When it runs on its own.
    pub schedule: Option<Schedule>,
    /// Spending limits of a run.
    pub budget: BudgetLimits,
    /// Spending limits of all its runs in a day or month.
    pub periods: PeriodLimits,
    /// Whether a run goes on with what is finished once a budget is used up (`on_budget: finish`).
    pub finishes: bool,
    /// Tests, run on request.
    pub tests: Vec<TestCase>,
    /// Loops about which rows decide: when they end (`stop:`), or which round they hand on (`best:`).
    pub loops: Vec<LoopSpec>,
    /// What the last rounds of loops hand on.
    pub handed_on: Vec<HandedOnSpec>,
    /// Names that several nodes have. They are reported; errors that follow from them are not.
    pub duplicates: BTreeSet<String>,
    /// Whether included files could not be read, so that nodes may be missing. It is reported; errors that follow from it are
    /// not.
    pub lacks_files: bool,
    /// Whether only its tests run: files that it reads may not exist.
    pub for_tests: bool,
}

impl Spec {
    /// Whether several nodes have the name of that one.
    pub fn is_duplicate(&self, id: &str) -> bool {
        self.duplicates.contains(coordinate::base(id))
    }
}

/// A loop about which its rows decide: one combination of its matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopSpec {
    /// Its name with the coordinates of its matrix: `rl`, `rl@seed=1`.
    pub id: String,
    /// Location of its name.
    pub span: Span,
    /// Whether rows may end it.
    pub stops: bool,
    /// Its rounds, the first one first.
    pub rounds: Vec<RoundSpec>,
}

/// An output that a loop hands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOnSpec {
    /// Its name: `rl.policy`; of one loop of a matrix, `rl.policy@seed=1`.
    pub name: String,
    /// The node of the last round.
    pub node: NodeId,
    /// Its output; `None` for the default one.
    pub port: Option<String>,
}

/// A round of such a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundSpec {
    /// The node that decides after the round (`rl@round=3`). Its operator is chosen when the pipeline is bound.
    pub decision: NodeId,
    /// The other nodes of the round, in the same order in every round.
    pub nodes: Vec<NodeId>,
}

/// A node of a pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeSpec {
    /// Node id (`train`, `train@lr=1e-4,rank=64`).
    pub id: NodeId,
    /// Location of the id.
    pub id_span: Span,
    /// The word after `op:`.
    pub operator: String,
    /// Location of that word.
    pub operator_span: Span,
    /// Inputs, in the order written.
    pub from: Vec<Binding>,
    /// Location of the value of `from:`.
    pub from_span: Option<Span>,
    /// Params of the operator: a map with every `${…}` resolved.
    pub with: Spanned,
    /// Servers that run while the node runs, in the order of their names.
    pub services: Vec<ServiceSpec>,
    /// Resource limits.
    pub resources: Resources,
    /// Retries of external calls.
    pub retry: RetryPolicy,
    /// How rejected rows are handled.
    pub on_error: OnError,
    /// Locations of execution settings: `retry`, `on_error`, `gpus`, ….
    pub settings: Vec<(String, Span)>,
    /// Whether to use an earlier result regardless of changes.
    pub freeze: bool,
    /// Seed of all random choices.
    pub seed: u64,
    /// Coordinates in a matrix, in the order of the keys.
    pub matrix: Vec<Coordinate>,
    /// What must hold of its result.
    pub checks: Vec<CheckSpec>,
    /// In a loop with `keep:`, of which rounds its folders stay. Execution only: never part of a key.
    pub keep: Option<Kept>,
}

impl NodeSpec {
    /// Returns the loop that it is part of, and its round.
    pub fn round(&self) -> Option<(&str, u64)> {
        let mut coordinates = self.matrix.iter();
        coordinates.find_map(|coordinate| Some((coordinate.repeats.as_deref()?, coordinate.name.parse().ok()?)))
    }

    /// Returns its id without its round.
    pub fn id_of_rounds(&self) -> String {
        let rest: Vec<_> = self.matrix.iter().filter(|coordinate| coordinate.repeats.is_none()).cloned().collect();
        NodeId::new(self.id.name(), &coordinate::names(&rest)).into()
    }

    /// Returns all bindings: inputs of the operator and inputs of services.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.from.iter().chain(self.services.iter().flat_map(|service| &service.from))
    }

    pub(super) fn bindings_mut(&mut self) -> impl Iterator<Item = &mut Binding> {
        self.from.iter_mut().chain(self.services.iter_mut().flat_map(|service| &mut service.from))
    }
}

/// A server that runs while its node runs. Params refer to its address by `${service.NAME}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSpec {
    /// Name.
    pub name: String,
    /// Location of the name.
    pub span: Span,
    /// What it serves.
    pub serves: Serves,
    /// Further arguments of `searchmill serve`.
    pub args: Vec<String>,
    /// Environment variables passed on to it.
    pub env: Vec<String>,
    /// Path that answers with a status of 2xx once it is ready.
    pub ready: String,
    /// Longest time until it is ready.
    pub within: Duration,
    /// Artifacts it reads; the ports start with `service.NAME`.
    pub from: Vec<Binding>,
}

/// What a service serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serves {
    /// A model, by `searchmill serve model`.
    Model,
    /// Search indexes, by `searchmill serve env`.
    Search,
    /// A program: its words, with `{port}` and the names of its inputs in braces.
    Program(Vec<String>),
}

/// Artifacts bound to an input port.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The port; `None` for the main one (`from: node`, `from: [a, b]`).
    pub port: Option<String>,
    /// Location of the port, or of all of `from:`.
    pub port_span: Span,
    /// The references, in the order written.
    pub references: Vec<Reference>,
}

/// A reference to a node's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Node id.
    pub node: String,
    /// Output port; `None` for the default one.
    pub port: Option<String>,
    /// Location of the reference.
    pub span: Span,
    /// The round that it refers to, if another than that of the node with the reference.
    pub round: Option<u64>,
    /// Set if it was written for all nodes of a matrix that differ in some keys, of which this is one.
    pub gathers: Option<Gathers>,
    /// Whether it stands for what a loop hands on, and rows decide of which round that is; `node` is that of the last
    /// round.
    pub handed_on: bool,
}

impl Reference {
    /// A reference to the default output of a node.
    pub(crate) fn to(node: String, span: Span) -> Self {
        Self { node, port: None, span, round: None, gathers: None, handed_on: false }
    }
}

/// A reference to several nodes of a matrix, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathers {
    /// The id of the node that gathers their rows: `hits@all`, `hits@k=5,all`.
    pub id: NodeId,
    /// Whether `@all` was written.
    pub stated: bool,
}

/// Resources of a node. Execution only: never part of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Limit of rows in flight.
    pub concurrency: Option<usize>,
    /// Number of CPU threads.
    pub threads: Option<usize>,
    /// Number of GPUs.
    pub gpus: u32,
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    /// Whether to compute on the CPU if GPUs are missing.
    pub cpu_fallback: bool,
    /// Whether to run in a separate process.
    pub isolate: bool,
    /// Timeout of the separate process.
    pub timeout: Option<Duration>,
}

/// Of which rounds of a loop the folders (models, states, indexes) stay in the store. Those of other rounds are released
/// once all nodes that use them are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Every so many rounds, counted from 0.
    pub every: Option<u64>,
    /// The last rounds.
    pub last: u64,
}

impl Kept {
    /// The last round alone.
    pub(super) const LAST: Self = Self { every: None, last: 1 };

    /// Whether the folders of a round stay, however many follow.
    pub fn keeps(self, round: u64) -> bool {
        self.every.is_some_and(|every| round.is_multiple_of(every))
    }
}

named! {
    /// How a rejected row is handled.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OnError {
        /// The node fails.
        Fail = "fail",
        /// The row goes to `rejects` and the run continues.
        #[default]
        DeadLetter = "dead_letter",
        /// The row is counted and dropped.
        Drop = "drop",
    }
}

/// Overrides of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Values of `--set`: `a.b=value`.
    pub set: Vec<String>,
    /// Files of `--params`; later ones win.
    pub params_files: Vec<PathBuf>,
}
