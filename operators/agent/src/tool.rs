//! Tools of an agent. Searches run off the network threads. A search that fails fails the row: the model never reads
//! about a fault of the machine, and no trajectory contains it.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{FailureKind, RowFailure};
use searchmill_retrieval::{Found, Search};
use serde_json::Value;
use tokio::sync::Semaphore;

/// What the model sees of a tool: passages, best first, or the text of an error that it made itself.
pub type ToolResult = Result<Vec<Found>, String>;

/// A tool that a model can call.
pub trait Tool: Send + Sync {
    /// Runs one call. The protocol has validated the arguments (a JSON object).
    ///
    /// # Errors
    /// Fails if the tool itself failed (an index that cannot be read, a panic), which says nothing about the model.
    fn call(&self, arguments: Value) -> BoxFuture<'_, Result<ToolResult, RowFailure>>;
}

/// The search tool. Runs searches on blocking threads, at most `threads` at a time.
pub struct Searcher {
    search: Arc<Search>,
    permits: Arc<Semaphore>,
}

impl Searcher {
    pub fn new(search: Search, threads: usize) -> Self {
        Self { search: Arc::new(search), permits: Arc::new(Semaphore::new(threads.max(1))) }
    }

    async fn search(&self, query: String) -> Result<ToolResult, RowFailure> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(failed)?;
        let search = Arc::clone(&self.search);
        let searched = tokio::task::spawn_blocking(move || {
            let found = search.search(&query);
            drop(permit);
            found
        });
        searched.await.map_err(failed)?.map(Ok).map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> RowFailure {
    RowFailure::new(FailureKind::Data, format!("the search failed: {error}"))
}

impl Tool for Searcher {
    fn call(&self, arguments: Value) -> BoxFuture<'_, Result<ToolResult, RowFailure>> {
        self.search(query(&arguments).to_owned()).boxed()
    }
}

/// Returns the query of a search.
pub(crate) fn query(arguments: &Value) -> &str {
    arguments["query"].as_str().unwrap_or_default()
}
