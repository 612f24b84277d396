//! A reranker function outside a run, for a server: nothing is remembered.

use searchmill_data::python::{Called, JsonRows, Pool, PythonFunction, Width};
use searchmill_engine::operator::{Context, OperatorError};
use searchmill_retrieval::Found;
use serde_json::{Map, json};

use super::rerank::{documents, order};

/// Processes of a function that is no class (at most).
const PROCESSES: usize = 4;

/// A Python function that orders passages, and its processes.
pub struct RankingFunction {
    pool: Pool,
}

impl RankingFunction {
    /// Opens `file.py:name`, and starts its first process: what cannot be imported is told before the first request.
    ///
    /// # Errors
    /// Fails if the function cannot be imported.
    pub fn open(name: &str, context: &Context) -> Result<Self, OperatorError> {
        let (file, function) = PythonFunction::split(name).map_err(OperatorError::pipeline)?;
        let function = PythonFunction { file, function, ..PythonFunction::default() };
        let arguments = ["query", "documents"].map(str::to_owned).to_vec();
        let width = Width { function: context.threads().min(PROCESSES), class: 1 };
        let pool = Pool::new(function, arguments, width, context);
        pool.start()?;
        Ok(Self { pool })
    }

    /// Returns the places of the passages in their new order, with their new scores.
    ///
    /// # Errors
    /// Says why there is no order: the function raised, or returned something else.
    pub fn order(&self, query: &str, found: &[Found]) -> Result<Vec<(usize, f64)>, String> {
        let row =
            Map::from_iter([("query".to_owned(), json!(query)), ("documents".to_owned(), json!(documents(found)))]);
        let called = self.pool.call(&JsonRows::of_values(&[row])).map_err(|error| error.told())?;
        let text = match called.into_iter().next() {
            Some(Called::Row(row)) => json!(row).to_string(),
            Some(Called::Rows(rows)) => json!(rows).to_string(),
            Some(Called::Failed(failure)) => return Err(failure.message),
            None => return Err("the call has no answer".to_owned()),
        };
        order(&text, found)
    }
}
