//! Run settings: what to run, and with which resources.

use crate::plan::NodeIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::request::{Request, Retry};
use super::resources::Machine;
use super::workers::Workers;
use crate::endpoint::BudgetLimits;
use crate::fingerprint::Digest;
use crate::node_id::NodeId;
use crate::operator::SecretLookup;
use crate::plan::Selection;
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
            limit: Some(&options.limit),
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
    /// Rows given by a test; `None`: this is no test.
    pub trial: Option<Trial>,
}

/// What a test gives.
#[derive(Clone, Default)]
pub(crate) struct Trial {
    /// Outputs of nodes that do not run, by index in the plan.
    pub given: BTreeMap<NodeIndex, IndexMap<String, OutputRecord>>,
}

impl Settings {
    /// Returns the outputs that a test gives to a node.
    pub(crate) fn given(&self, index: NodeIndex) -> Option<&IndexMap<String, OutputRecord>> {
        self.trial.as_ref()?.given.get(&index)
    }

    /// Returns the settings that decide which nodes run.
    pub(crate) fn request(&self) -> Request<'_> {
        self.chosen.request(&self.directory, &self.asked)
    }
}
