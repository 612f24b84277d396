//! The journal: one JSON line for every search, for audits. A search that cannot be written fails.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;
use searchmill_retrieval::Numbered;
use serde_json::{Value, json};

use crate::serve::env::problem::Problem;

/// An open journal. Lines are only appended.
pub(crate) struct Journal(Mutex<File>);

impl Journal {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self(Mutex::new(OpenOptions::new().create(true).append(true).open(path)?)))
    }

    /// Appends the line of a search: time, route, digests of the indexes, queries, and the ids that it returned, or the
    /// error.
    ///
    /// # Errors
    /// Fails if the line cannot be written.
    pub(crate) fn write(
        &self,
        route: &str,
        digests: &str,
        queries: &[String],
        top_k: usize,
        found: &Result<Vec<Vec<Numbered>>, Problem>,
    ) -> Result<(), Problem> {
        let mut line = json!({"time": searchmill_engine::unix_time(), "route": route, "index": digests,
            "queries": queries, "top_k": top_k});
        match found {
            Ok(lists) => {
                let lists = lists.iter().map(|list| list.iter().map(|chunk| chunk.found.chunk_id.as_str()));
                line["ids"] = lists.map(Iterator::collect::<Value>).collect();
            }
            Err(problem) => line["error"] = problem.detail().into(),
        }
        // One write: the lines of searches at the same time do not mix.
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes()).map_err(|error| {
            let detail = format!("the journal cannot be written: {error}");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
        })
    }
}
