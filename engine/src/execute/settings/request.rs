//! The part of a run's settings that decides which nodes run.

use std::collections::BTreeSet;
use std::path::Path;

use crate::fingerprint::Reason;
use crate::node_id::NodeId;
use crate::plan::{Node, NodeIndex, Plan};
use crate::spec::RowLimit;

/// The part of a run's settings that decides which nodes run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// Base of relative paths.
    pub directory: &'a Path,
    /// Rows of sources (at most).
    pub limit: Option<&'a RowLimit>,
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
    /// Returns the request of a plain run in that folder.
    pub(crate) fn new(directory: &'a Path) -> Self {
        Self {
            directory,
            limit: None,
            selected: None,
            asked: None,
            force: None,
            no_cache: false,
            retry: Retry::Failed,
            estimates: false,
        }
    }

    /// Limits the rows of sources.
    #[must_use]
    pub(crate) fn limited(self, limit: &'a RowLimit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Asks a survey for estimates.
    #[must_use]
    pub(crate) fn with_estimates(self) -> Self {
        Self { estimates: true, ..self }
    }

    /// Returns the rows of a node (at most), if it is a source.
    pub(crate) fn rows_of(&self, node: &Node) -> Option<u64> {
        if node.inputs.is_empty() { self.limit?.of(node.id()) } else { None }
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
