//! How to run: what a run is asked for, and what it may use.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::request::{Request, Retry};
use super::resources::Machine;
use super::worker::Workers;
use crate::operator::{BudgetLimits, SecretLookup};

/// How to run.
#[derive(Clone)]
pub struct Settings {
    /// Nodes at once.
    pub jobs: usize,
    /// After a failure, run what does not depend on it.
    pub keep_going: bool,
    /// Run these nodes even if their result is known (`*`: all).
    pub force: BTreeSet<String>,
    /// Look nothing up (results are still recorded).
    pub no_cache: bool,
    /// Rows that a source gives at most.
    pub limit: Option<u64>,
    /// Places of the nodes to run; others are only looked up.
    pub selected: BTreeSet<usize>,
    /// Relative paths start here.
    pub directory: PathBuf,
    /// What the machine has.
    pub machine: Machine,
    /// Programs and devices for nodes in processes of their own.
    pub workers: Workers,
    /// Looks secrets up.
    pub secrets: SecretLookup,
    /// What calls to endpoints may cost; used up, the run stops, and the next one goes on.
    pub budget: BudgetLimits,
    /// Pay again for remembered answers that are damaged, however many.
    pub rebuy: bool,
    /// Try rows again, too, that `on_error: drop` passed over.
    pub retry_dropped: bool,
    /// Deliver outputs also where too many rows were lost before them.
    pub deliver_anyway: bool,
}

impl Settings {
    pub(super) fn retry(&self) -> Retry {
        if self.retry_dropped { Retry::Dropped } else { Retry::Failed }
    }

    /// What decides which nodes run.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request {
            directory: &self.directory,
            limit: self.limit,
            selected: Some(&self.selected),
            force: Some(&self.force),
            no_cache: self.no_cache,
            retry: self.retry(),
        }
    }
}
