//! What all requests of the page share.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, header};
use searchmill_engine::{NodeRun, Session, ShownPage};
use tokio::sync::Semaphore;

use super::problem::Problem;
use super::views::{View, Views};

/// Questions to the store that are answered at the same time (at most); others wait.
const AT_ONCE: usize = 4;

/// The error of a node that a run does not have.
pub(super) fn no_node(run: &str, node: &str) -> Problem {
    Problem::missing(format!("the run {run} has no node `{node}`"))
}

/// Fails unless the request is of this page itself: other pages in the same browser must not write.
pub(super) fn require_own_page(headers: &HeaderMap) -> Result<(), Problem> {
    if let (Some(origin), Some(host)) = (headers.get(header::ORIGIN), headers.get(header::HOST))
        && let (Ok(origin), Ok(host)) = (origin.to_str(), host.to_str())
        && let Some((_, origin)) = origin.split_once("://")
        && origin == host
    {
        return Ok(());
    }
    Err(Problem::refused("only the page itself may write: the Origin header must be its address"))
}

/// What all requests share.
pub(super) struct Page {
    pub(super) session: Session,
    /// Stands in the addresses of files, which frames and downloads ask for without a token. Nobody can guess it.
    pub(super) key: String,
    pub(super) views: Views<View>,
    turns: Semaphore,
    /// Where the page is served.
    address: String,
    /// Set once the store says so: it may be created later than the page.
    shown: Mutex<Option<ShownPage>>,
}

impl Page {
    pub(super) fn new(session: Session, address: String) -> Self {
        let key = format!("{:032x}", rand::random::<u128>());
        // Tokio would start up to 512 blocking threads, and each question may read a whole table.
        let turns = Semaphore::new(AT_ONCE);
        Self { session, key, views: Views::new(View::numbers), turns, address, shown: Mutex::default() }
    }

    /// Lets runs find the page, if the store is there.
    pub(super) fn announce(&self) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_none() {
            // If it cannot be written, runs do not name the page; it can be looked at all the same.
            *shown = self.session.store().show_page(&self.address).unwrap_or_default();
        }
    }

    /// Fails if there is no run of this id.
    pub(super) fn require_run(&self, id: &str) -> Result<(), Problem> {
        if self.session.runs().contains(id)? { Ok(()) } else { Err(Problem::missing(format!("there is no run {id}"))) }
    }

    /// Returns the records of a run's nodes.
    pub(super) fn nodes(&self, run: &str) -> Result<Vec<NodeRun>, Problem> {
        self.require_run(run)?;
        Ok(self.session.runs().nodes(run)?)
    }

    /// Asks the store on a thread that may block.
    pub(super) async fn ask<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.turns.acquire().await.map_err(|_| Problem::broken("the server ends"))?;
        let page = Arc::clone(&self);
        let answered = tokio::task::spawn_blocking(move || {
            page.announce();
            work(&page)
        });
        let answered = answered.await;
        drop(turn);
        // An error: the question panicked.
        answered
            .unwrap_or_else(|_| Err(Problem::broken("the question could not be answered: see the log of the server")))
    }
}
