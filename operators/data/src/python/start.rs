//! Starts the process of a function.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;

use searchmill_engine::operator::{Context, OperatorError};
use serde_json::json;

use super::function::PythonFunction;
use super::known::Known;
use super::worker::Worker;
use crate::program::Program;

/// The script of the process.
const SCRIPT: &str = concat!(
    include_str!("project.py"),
    include_str!("values.py"),
    include_str!("function.py"),
    include_str!("worker.py"),
);

impl PythonFunction {
    /// Starts a process that has imported the function.
    ///
    /// # Errors
    /// Fails if the process cannot be started, or does not find the function.
    pub(super) fn started(&self, context: &Context, known: &Arc<Known>) -> Result<Worker, OperatorError> {
        let mut words = known.words.clone();
        words.extend(["-c".to_owned(), SCRIPT.to_owned()]);
        let given = BTreeMap::from([
            // The order of sets is the same in every process.
            ("PYTHONHASHSEED".to_owned(), "0".to_owned()),
            ("SEARCHMILL_SEED".to_owned(), context.seed().to_string()),
        ]);
        let (allowed, writes) = (&self.environment, &self.writes);
        let program = Program { command: &words, given, allowed, writes, seconds: self.seconds };
        let running = program.start(Stdio::piped(), context)?;
        // Where the system does not report opened files, the process reports its own.
        let listens = !running.is_observed();
        let mut worker = Worker::of(running, self, context, known)?;
        worker.greet(&json!({
            "file": known.file, "module": known.package.as_ref().map(|package| &package.module), "function": known.function,
            "directory": known.directory, "batch": self.batch, "listens": listens,
        }))?;
        Ok(worker)
    }
}
