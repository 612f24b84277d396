//! State shared by all nodes of a run; usable from any thread.

use crate::plan::NodeIndex;
use std::sync::{Arc, Mutex, PoisonError};

use super::endpoints::Endpoints;
use crate::events::Reporter;
use crate::execute::decide::history::History;
use crate::execute::settings::options::Settings;
use crate::execute::settings::stop::Stop;
use crate::fingerprint::SourceDigests;
use crate::plan::{Node, Plan};
use crate::store::{NodeRun, RunWriter, Store, StoreError};

/// A run in progress.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) id: String,
    /// Start time: Unix time in nanoseconds, like the stamps of remembered rows and answers.
    pub(crate) started: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) store: Store,
    pub(crate) options: Arc<Settings>,
    pub(crate) reporter: Arc<dyn Reporter>,
    pub(crate) stop: Stop,
    pub(crate) http: reqwest::Client,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) history: Arc<History>,
    pub(crate) sources: Arc<SourceDigests>,
    /// The records of the run's nodes.
    pub(crate) records: Arc<Mutex<RunWriter>>,
}

impl Run {
    /// Returns the node at that index of the plan.
    pub(crate) fn node(&self, index: NodeIndex) -> &Node {
        &self.plan[index]
    }

    /// Records that a node starts, and flushes: a killed run leaves a record of its started nodes, which also marks the
    /// cached results that it used so far as in use.
    pub(super) fn begin(&self, begun: &NodeRun) -> Result<(), StoreError> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.node(begun)?;
        records.flush()
    }

    /// Returns the same run with the plan as it is once a loop has ended.
    pub(crate) fn with(&self, plan: Plan) -> Self {
        Self { plan: Arc::new(plan), ..self.clone() }
    }

    /// Stores the digests of sources for the next run.
    pub(crate) fn keep_sources(&self) -> Result<(), StoreError> {
        self.sources.changed().map_or(Ok(()), |known| self.store.keep_sources(&known))
    }
}
