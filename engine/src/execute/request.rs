//! What a run is asked for, as far as it decides which nodes run.

use std::collections::BTreeSet;
use std::path::Path;

use crate::fingerprint::Reason;
use crate::plan::Node;

/// What a run is asked for, as far as it decides which nodes run.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Relative paths start here.
    pub directory: &'a Path,
    /// Rows that a source gives at most.
    pub limit: Option<u64>,
    /// Places of the nodes that may run; `None`: all.
    pub selected: Option<&'a BTreeSet<usize>>,
    /// Nodes that run even if their result is known (`*`: all).
    pub force: Option<&'a BTreeSet<String>>,
    /// Look nothing up.
    pub no_cache: bool,
    /// Which rows that failed outside are tried again.
    pub retry: Retry,
}

impl<'a> Request<'a> {
    /// A plain run in that folder.
    #[must_use]
    pub fn new(directory: &'a Path) -> Self {
        Self { directory, limit: None, selected: None, force: None, no_cache: false, retry: Retry::Failed }
    }

    /// The same with at most so many rows of each source.
    #[must_use]
    pub fn limited(self, limit: Option<u64>) -> Self {
        Self { limit, ..self }
    }

    pub(super) fn may_run(&self, place: usize) -> bool {
        self.selected.is_none_or(|selected| selected.contains(&place))
    }

    pub(super) fn forced(&self, node: &Node) -> Option<Reason> {
        let forced = self.force.is_some_and(|ids| ids.contains(node.id()) || ids.contains("*"));
        let cache_off = self.no_cache.then_some(Reason::CacheOff);
        if forced { Some(Reason::Forced) } else { cache_off }
    }
}

/// Which rows that failed outside are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// None.
    Nothing,
    /// Rejects.
    Failed,
    /// Those also that `on_error: drop` passed over.
    Dropped,
}
