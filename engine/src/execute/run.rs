//! State shared by all nodes of a run; usable from any thread.

use std::sync::Arc;

use super::endpoints::Endpoints;
use super::history::History;
use super::options::Settings;
use super::stop::Stop;
use crate::fingerprint::SourceDigests;
use crate::plan::{Node, Plan};
use crate::report::Reporter;
use crate::store::{Store, StoreError};

/// A run in progress.
pub(super) struct Run {
    pub(super) id: String,
    /// Start time: Unix time in nanoseconds, like the stamps of remembered rows and answers.
    pub(super) started: u64,
    pub(super) plan: Arc<Plan>,
    pub(super) store: Store,
    pub(super) options: Settings,
    pub(super) reporter: Arc<dyn Reporter>,
    pub(super) stop: Stop,
    pub(super) http: reqwest::Client,
    pub(super) endpoints: Endpoints,
    pub(super) history: History,
    pub(super) sources: SourceDigests,
}

impl Run {
    /// Returns the node at that place of the plan.
    pub(super) fn node(&self, place: usize) -> &Node {
        &self.plan.nodes[place]
    }

    /// Stores the digests of sources for the next run.
    pub(super) fn keep_sources(&self) -> Result<(), StoreError> {
        self.sources.changed().map_or(Ok(()), |known| self.store.keep_sources(&known))
    }
}
