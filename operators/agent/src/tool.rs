//! Tools of an agent. Searches run off the network threads. A search that fails fails the row: the model never reads
//! about a fault of the machine, and no trajectory contains it. A service outside that fails is a fact about the world
//! that a model must handle: it reads the error, and the failure is counted.

use std::sync::Arc;

use futures::future::BoxFuture;
use searchmill_engine::operator::{Context, FailureKind, OperatorError, RowFailure, Usage};
use searchmill_retrieval::{Found, Search};
use searchmill_schemas::{Message, Observation};
use serde_json::Value;
use tokio::sync::Semaphore;

/// What the model sees of a tool: passages, best first, or the text of an error that it made itself.
pub type ToolResult = Result<Vec<Found>, String>;

/// The error of a call that a tool outside failed to answer: what the model reads, and a record is recognised by.
pub(crate) fn failure_of(tool: &str, error: &str) -> String {
    format!("`{tool}` failed: {error}")
}

/// Name of the search in protocols whose searches are text.
pub const SEARCH: &str = "search";

/// Beginning of the error of a reranker that failed.
pub(crate) const RERANKER: &str = "the reranker failed: ";

/// The result of a search without an index.
pub(crate) fn nothing_to_search() -> ToolResult {
    Err("there is nothing to search".to_owned())
}

/// Returns the passage that a record names, with this text.
pub(crate) fn passage(seen: &Observation, contents: String) -> Found {
    let Observation { chunk_id, document_id, title, score } = seen.clone();
    Found { chunk_id, document_id, title, contents, score, sources: Vec::new() }
}

/// A JSON value as text.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// What a call gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    /// What the model sees.
    pub result: ToolResult,
    /// Cost of the calls to a service.
    pub usage: Usage,
    /// Whether a service failed. Mistakes of the model are no failures.
    pub failed: bool,
}

impl From<ToolResult> for Called {
    fn from(result: ToolResult) -> Self {
        Self { result, usage: Usage::default(), failed: false }
    }
}

/// The state of a rollout when it calls a tool.
#[derive(Clone, Copy)]
pub struct Moment<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    pub context: &'a Context,
}

/// A tool that a model can call.
pub trait Tool: Send + Sync {
    /// Runs one call. The protocol has validated the arguments (a JSON object).
    ///
    /// # Errors
    /// Fails if the tool itself failed (an index that cannot be read, a panic), which says nothing about the model.
    fn call<'a>(&'a self, arguments: Value, moment: Moment<'a>) -> BoxFuture<'a, Result<Called, RowFailure>>;

    /// Returns an error that fails the node: a process that cannot be started.
    fn fault(&self) -> Option<OperatorError> {
        None
    }
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

    /// Searches for a query.
    ///
    /// # Errors
    /// Fails if the index cannot be read.
    pub async fn search(&self, query: String) -> Result<ToolResult, RowFailure> {
        // First the permit: rows that wait must not take up the runtime's blocking threads.
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(failed)?;
        let search = Arc::clone(&self.search);
        let searched = tokio::task::spawn_blocking(move || {
            let found = search.search(&query);
            // With the thread, not with the row: a row that is dropped frees no thread that still searches.
            drop(permit);
            found
        });
        searched.await.map_err(failed)?.map(Ok).map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> RowFailure {
    RowFailure::new(FailureKind::Data, format!("the search failed: {error}"))
}

/// Returns the query of a search.
pub(crate) fn query(arguments: &Value) -> &str {
    arguments["query"].as_str().unwrap_or_default()
}
