//! Tools of an agent. Searches run off the network threads; their errors are returned as errors.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_retrieval::{Found, Search};
use serde_json::Value;
use tokio::sync::Semaphore;

/// Result of a tool: passages, best first, or an error text for the model.
pub type ToolResult = Result<Vec<Found>, String>;

/// A tool that a model can call.
pub trait Tool: Send + Sync {
    /// Runs one call. The protocol has validated the arguments (a JSON object).
    fn call(&self, arguments: Value) -> BoxFuture<'_, ToolResult>;
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

    async fn search(&self, query: String) -> ToolResult {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|error| error.to_string())?;
        let search = Arc::clone(&self.search);
        let searched = tokio::task::spawn_blocking(move || {
            let found = search.search(&query);
            drop(permit);
            found
        });
        match searched.await {
            Ok(found) => found.map_err(|error| format!("the search failed: {error}")),
            Err(error) => Err(format!("the search failed: {error}")),
        }
    }
}

impl Tool for Searcher {
    fn call(&self, arguments: Value) -> BoxFuture<'_, ToolResult> {
        self.search(query(&arguments).to_owned()).boxed()
    }
}

/// Returns the query of a search.
pub(crate) fn query(arguments: &Value) -> &str {
    arguments["query"].as_str().unwrap_or_default()
}
