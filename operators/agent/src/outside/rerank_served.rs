//! A reranker function outside a run, for a server: nothing is remembered.

use searchmill_data::python::{JsonRows, Pool, PythonFunction};
use searchmill_engine::operator::{Context, OperatorError};
use searchmill_retrieval::Found;
use serde_json::{Map, json};

use super::function::{NO_ANSWER, pool, returned};
use super::rerank::{documents, order};

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
        let pool = pool(function, arguments, context);
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
        let called = self.pool.call(&JsonRows::of_values(&[row])).map_err(|error| error.text())?.pop();
        let text = returned(called.ok_or(NO_ANSWER)?).map_err(|failure| failure.message)?;
        order(&text, found)
    }
}
