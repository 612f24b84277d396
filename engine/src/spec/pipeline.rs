//! A pipeline as written: nodes with their references, params resolved, nothing checked against operators yet.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::schedule::Schedule;
use super::value::Spanned;
use crate::diagnostic::Span;
use crate::operator::{BudgetLimits, RetryPolicy};

/// A pipeline as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The files that it was read from: its own, those included, those of `--params`.
    pub files: Vec<PathBuf>,
    /// Its nodes, in the order written; a matrix is expanded in place.
    pub nodes: Vec<NodeSpec>,
    /// Params after overrides, every `${…}` resolved (secrets stay references).
    pub params: serde_json::Value,
    /// What the command line changed in them.
    pub overrides: Overrides,
    /// Names of all secrets referred to.
    pub secrets: BTreeSet<String>,
    /// When it runs by itself.
    pub schedule: Option<Schedule>,
    /// What a run may spend.
    pub budget: BudgetLimits,
    /// `tests:` as written, its shape checked.
    pub tests: Option<Spanned>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// Its id (`train`, `train@lr=1e-4,rank=64`).
    pub id: String,
    /// Where the id stands.
    pub id_span: Span,
    /// The word after `op:`.
    pub operator: String,
    /// Where that word stands.
    pub operator_span: Span,
    /// Inputs, in the order written.
    pub from: Vec<Binding>,
    /// Where the value of `from:` stands.
    pub from_span: Option<Span>,
    /// Params of the operator: a map with every `${…}` resolved.
    pub with: Spanned,
    /// What it may use.
    pub resources: Resources,
    /// Repeats of outside calls.
    pub retry: RetryPolicy,
    /// What a failed row does.
    pub on_error: OnError,
    /// Where settings of the run were written: `retry`, `on_error`, `gpus`, ….
    pub settings: Vec<(String, Span)>,
    /// Use what an earlier run made, whatever changed since.
    pub freeze: bool,
    /// Seed of all its random choices.
    pub seed: u64,
    /// Its coordinates in a matrix, in the order of the keys.
    pub matrix: Vec<(String, String)>,
}

/// What is bound to an input port.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The port; `None` means the main one (`from: node`, `from: [a, b]`).
    pub port: Option<String>,
    /// Where the port stands, or the whole of `from:`.
    pub port_span: Span,
    /// What is bound, in the order written.
    pub references: Vec<Reference>,
}

/// A node's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Id of the node.
    pub node: String,
    /// Its output port; `None` means the default one.
    pub port: Option<String>,
    /// Where the reference stands.
    pub span: Span,
}

/// What a node may use. Execution only: never enters a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Rows in flight.
    pub concurrency: Option<usize>,
    /// CPU threads.
    pub threads: Option<usize>,
    /// GPUs.
    pub gpus: u32,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Compute on the CPU where the GPUs are not there.
    pub cpu_fallback: bool,
    /// Run in a process of its own.
    pub isolate: bool,
    /// Longest time that a process of its own may take.
    pub timeout: Option<std::time::Duration>,
}

/// What a failed row does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// It fails the node.
    Fail,
    /// It goes to `rejects` and the run goes on.
    #[default]
    DeadLetter,
    /// It is counted and dropped.
    Drop,
}

/// What the command line changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `a.b=value`, as given with `--set`.
    pub set: Vec<String>,
    /// Files given with `--params`, later ones win.
    pub params_files: Vec<PathBuf>,
}
