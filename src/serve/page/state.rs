//! What all requests of the page share.

use std::sync::Arc;

use searchmill_engine::{NodeRun, Session};
use tokio::sync::Semaphore;

use super::problem::Problem;
use super::views::{View, Views};

/// Questions to the store that are answered at the same time (at most); others wait.
const AT_ONCE: usize = 4;

/// The error of a node that a run does not have.
pub(super) fn no_node(run: &str, node: &str) -> Problem {
    Problem::missing(format!("the run {run} has no node `{node}`"))
}

/// What all requests share.
pub(super) struct Page {
    pub(super) session: Session,
    pub(super) views: Views<View>,
    turns: Semaphore,
}

impl Page {
    pub(super) fn new(session: Session) -> Self {
        Self { session, views: Views::new(View::numbers), turns: Semaphore::new(AT_ONCE) }
    }

    /// Fails if there is no run of this id.
    pub(super) fn require_run(&self, id: &str) -> Result<(), Problem> {
        if self.session.has_run(id)? { Ok(()) } else { Err(Problem::missing(format!("there is no run {id}"))) }
    }

    /// Returns the records of a run's nodes.
    pub(super) fn nodes(&self, run: &str) -> Result<Vec<NodeRun>, Problem> {
        self.require_run(run)?;
        Ok(self.session.run_nodes(run)?)
    }

    /// Asks the store on a thread that may block.
    pub(super) async fn ask<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.turns.acquire().await.map_err(|_| Problem::broken("the server ends"))?;
        let page = Arc::clone(&self);
        let answered = tokio::task::spawn_blocking(move || work(&page)).await;
        drop(turn);
        answered
            .unwrap_or_else(|_| Err(Problem::broken("the question could not be answered: see the log of the server")))
    }
}
