//! Run settings: what to run, and with which resources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::device::Workers;
use super::resources::Machine;
use crate::endpoint::BudgetLimits;
use crate::fingerprint::{Digest, Reason};
use crate::node_id::NodeId;
use crate::operator::SecretLookup;
use crate::plan::{Node, NodeIndex, Plan, Selection};
use crate::spec::RowLimit;
use crate::store::OutputRecord;

/// Options of a run. The default runs every node without a cached result, as many at a time as the machine has threads.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The nodes to run (all); others are only looked up.
    pub selection: Selection,
    /// Run the nodes with rejected rows, and their dependents, instead of `selection`.
    pub retry_rejects: bool,
    /// Run these nodes even if their result is cached (`*`: all).
    pub force: Vec<String>,
    /// Run the nodes with remote sources even if their result is cached.
    pub refresh_sources: bool,
    /// Ignore cached results. New results are still recorded.
    pub no_cache: bool,
    /// Read at most this many rows of sources.
    pub limit: RowLimit,
    /// Run at most this many nodes at a time (threads of the machine).
    pub jobs: Option<usize>,
    /// After a failure, run the nodes that do not depend on it.
    pub keep_going: bool,
    /// Limits that replace those in the pipeline's `budget:`.
    pub budget: BudgetLimits,
    /// Pay again for damaged remembered answers.
    pub rebuy: bool,
    /// Deliver outputs even if too many rows were lost before them.
    pub deliver_anyway: bool,
    /// Programs for nodes that run in a separate process. The session adds the GPUs of the machine.
    pub workers: Workers,
}

impl RunOptions {
    pub(crate) fn retry(&self) -> Retry {
        if self.retry_rejects { Retry::Dropped } else { Retry::Failed }
    }
}

/// The nodes that the options select in one plan.
#[derive(Clone)]
pub(crate) struct Chosen {
    /// Places of the nodes that may run; others are only looked up.
    pub selected: BTreeSet<NodeIndex>,
    /// Places of the nodes that were named, and of those that no other selected node uses: their outputs must be in the
    /// store, even if they were released.
    pub asked: BTreeSet<NodeIndex>,
    /// Nodes that run even if their result is cached (`*`: all).
    pub force: BTreeSet<NodeId>,
}

impl Chosen {
    /// Returns the request that decides which of the nodes run.
    pub(crate) fn request<'a>(&'a self, directory: &'a Path, options: &'a RunOptions) -> Request<'a> {
        Request {
            directory,
            limit: &options.limit,
            selected: Some(&self.selected),
            asked: Some(&self.asked),
            force: Some(&self.force),
            no_cache: options.no_cache,
            retry: options.retry(),
            estimates: false,
        }
    }
}

/// Settings of a run.
#[derive(Clone)]
pub(crate) struct Settings {
    /// What was asked for, with the budget and the devices that count.
    pub asked: RunOptions,
    /// The nodes to run.
    pub chosen: Chosen,
    /// Base of relative paths.
    pub directory: PathBuf,
    /// The machine's resources.
    pub machine: Machine,
    /// Looks secrets up.
    pub secrets: SecretLookup,
    /// Digest of the plan, if its params fit all known columns.
    pub fits: Option<Digest>,
    /// Outputs that a test gives to nodes, which then do not run; `None`: this is no test.
    pub trial: Option<BTreeMap<NodeIndex, IndexMap<String, OutputRecord>>>,
}

impl Settings {
    /// Returns the outputs that a test gives to a node.
    pub(crate) fn given(&self, index: NodeIndex) -> Option<&IndexMap<String, OutputRecord>> {
        self.trial.as_ref()?.get(&index)
    }

    /// Returns the settings that decide which nodes run.
    pub(crate) fn request(&self) -> Request<'_> {
        self.chosen.request(&self.directory, &self.asked)
    }
}

/// The part of a run's settings that decides which nodes run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// Base of relative paths.
    pub directory: &'a Path,
    /// Rows of sources (at most).
    pub limit: &'a RowLimit,
    /// The nodes that may run; `None`: all.
    pub selected: Option<&'a BTreeSet<NodeIndex>>,
    /// Nodes whose outputs must be in the store, even if they were released; `None`: of those that no other node
    /// uses.
    pub asked: Option<&'a BTreeSet<NodeIndex>>,
    /// Nodes to run even if they are cached (`*`: all).
    pub force: Option<&'a BTreeSet<NodeId>>,
    /// Ignore cached results.
    pub no_cache: bool,
    /// Which failed rows to retry.
    pub retry: Retry,
    /// Whether a survey estimates the calls that nodes would make. That reads the memos of their rows.
    pub estimates: bool,
}

impl<'a> Request<'a> {
    /// Returns the request of a plain run in that folder with that limit.
    pub(crate) fn new(directory: &'a Path, limit: &'a RowLimit) -> Self {
        Self {
            directory,
            limit,
            selected: None,
            asked: None,
            force: None,
            no_cache: false,
            retry: Retry::Failed,
            estimates: false,
        }
    }

    /// Returns the rows of a node (at most), if it is a source.
    pub(crate) fn rows_of(&self, node: &Node) -> Option<u64> {
        if node.inputs.is_empty() { self.limit.of(node.id()) } else { None }
    }

    pub(crate) fn may_run(&self, index: NodeIndex) -> bool {
        self.selected.is_none_or(|selected| selected.contains(&index))
    }

    /// Whether the outputs of a node must be in the store, even if they were released.
    pub(crate) fn is_asked_for(&self, plan: &Plan, index: NodeIndex) -> bool {
        let delivers = !plan[index].operator.declaration.destinations().is_empty();
        delivers || self.asked.map_or_else(|| plan.dependents(index).is_empty(), |asked| asked.contains(&index))
    }

    pub(crate) fn forced(&self, node: &Node) -> Option<Reason> {
        if self.force.is_some_and(|ids| ids.contains(node.id()) || ids.contains("*")) {
            return Some(Reason::Forced);
        }
        if self.no_cache { Some(Reason::CacheOff) } else { None }
    }
}

/// Which failed rows to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// None.
    Nothing,
    /// Rejected rows of external nodes.
    Failed,
    /// Also rows dropped by `on_error: drop`.
    Dropped,
}
