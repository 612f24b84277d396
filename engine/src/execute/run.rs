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
#[derive(Clone)]
pub(super) struct Run {
    pub(super) id: String,
    /// Start time: Unix time in nanoseconds, like the stamps of remembered rows and answers.
    pub(super) started: u64,
    pub(super) plan: Arc<Plan>,
    pub(super) store: Store,
    pub(super) options: Arc<Settings>,
    pub(super) reporter: Arc<dyn Reporter>,
    pub(super) stop: Stop,
    pub(super) http: reqwest::Client,
    pub(super) endpoints: Arc<Endpoints>,
    pub(super) history: Arc<History>,
    pub(super) sources: Arc<SourceDigests>,
}

impl Run {
    /// Returns the node at that place of the plan.
    pub(super) fn node(&self, place: usize) -> &Node {
        &self.plan.nodes[place]
    }

    /// Returns the same run with the plan as it is once a loop has ended.
    pub(super) fn with(&self, plan: Plan) -> Self {
        Self { plan: Arc::new(plan), ..self.clone() }
    }

    /// Stores the digests of sources for the next run.
    pub(super) fn keep_sources(&self) -> Result<(), StoreError> {
        self.sources.changed().map_or(Ok(()), |known| self.store.keep_sources(&known))
    }
}
