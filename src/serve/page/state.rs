//! What all requests of the page share.

use std::sync::Arc;

use searchmill_engine::Session;
use tokio::sync::Semaphore;

use super::problem::Problem;
use super::views::{View, Views};

/// Questions to the store that are answered at the same time (at most); others wait.
const AT_ONCE: usize = 4;

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
