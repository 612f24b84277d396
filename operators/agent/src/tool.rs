//! The search tool as an agent meets it: searches run off the network threads, errors stay errors.

use std::sync::Arc;

use searchmill_engine::operator::OperatorError;
use searchmill_retrieval::{Found, Search};
use tokio::sync::Semaphore;

/// Something that can be searched.
pub trait SearchTool: Send + Sync {
    /// The passages for a query, best first.
    ///
    /// # Errors
    /// When the index cannot be read or the query cannot be understood.
    fn search(&self, query: &str) -> Result<Vec<Found>, OperatorError>;
}

/// Runs searches on blocking threads, as many at once as the node has threads.
#[derive(Clone)]
pub struct Searcher {
    tool: Arc<dyn SearchTool>,
    permits: Arc<Semaphore>,
}

impl Searcher {
    pub fn new(tool: Arc<dyn SearchTool>, threads: usize) -> Self {
        Self { tool, permits: Arc::new(Semaphore::new(threads.max(1))) }
    }

    /// The passages for a query, best first; the error is in words for the model.
    pub async fn search(&self, query: String) -> Result<Vec<Found>, String> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|error| error.to_string())?;
        let tool = Arc::clone(&self.tool);
        let searched = tokio::task::spawn_blocking(move || {
            let found = tool.search(&query);
            drop(permit);
            found
        });
        match searched.await {
            Ok(found) => found.map_err(|error| format!("the search failed: {error}")),
            Err(error) => Err(format!("the search failed: {error}")),
        }
    }
}

impl SearchTool for Search {
    fn search(&self, query: &str) -> Result<Vec<Found>, OperatorError> {
        Search::search(self, query)
    }
}
