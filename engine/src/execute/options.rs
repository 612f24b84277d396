//! Run settings: what to run, and with which resources.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::request::{Request, Retry};
use super::resources::Machine;
use super::worker::Workers;
use crate::operator::{BudgetLimits, SecretLookup};

/// Settings of a run.
#[derive(Clone)]
pub struct Settings {
    /// Nodes running at the same time (at most).
    pub jobs: usize,
    /// After a failure, run the nodes that do not depend on it.
    pub keep_going: bool,
    /// Nodes to run even if they are cached (`*`: all).
    pub force: BTreeSet<String>,
    /// Ignore cached results (results are still recorded).
    pub no_cache: bool,
    /// Rows per source (at most).
    pub limit: Option<u64>,
    /// Places of the nodes to run; others are only looked up.
    pub selected: BTreeSet<usize>,
    /// Base of relative paths.
    pub directory: PathBuf,
    /// The machine's resources.
    pub machine: Machine,
    /// Worker programs and devices for nodes that run in a separate process.
    pub workers: Workers,
    /// Looks secrets up.
    pub secrets: SecretLookup,
    /// Limits on calls to endpoints. Once they are used up, the run stops; the next run resumes.
    pub budget: BudgetLimits,
    /// Pay again for damaged remembered answers, however many.
    pub rebuy: bool,
    /// Also retry rows dropped by `on_error: drop`.
    pub retry_dropped: bool,
    /// Deliver outputs even if too many rows were lost before them.
    pub deliver_anyway: bool,
}

impl Settings {
    pub(super) fn retry(&self) -> Retry {
        if self.retry_dropped { Retry::Dropped } else { Retry::Failed }
    }

    /// Returns the settings that decide which nodes run.
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
