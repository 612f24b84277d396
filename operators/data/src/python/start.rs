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
    /// Starts a process that calls the function with rows of these columns. `input` are all columns, for messages (empty:
    /// rows are the arguments of calls).
    ///
    /// # Errors
    /// Fails if the process cannot be started, or the function cannot be called.
    pub fn start(&self, context: &Context, columns: &[String], input: &[String]) -> Result<Worker, OperatorError> {
        self.started(context, columns, input, &Arc::new(Known::of(self, context)?))
    }

    pub(super) fn started(
        &self,
        context: &Context,
        columns: &[String],
        input: &[String],
        known: &Arc<Known>,
    ) -> Result<Worker, OperatorError> {
        let mut words = known.words.clone();
        words.extend(["-c".to_owned(), SCRIPT.to_owned()]);
        let given = BTreeMap::from([
            // The order of sets is the same in every process.
            ("PYTHONHASHSEED".to_owned(), "0".to_owned()),
            ("SEARCHMILL_SEED".to_owned(), context.seed().to_string()),
        ]);
        let program = Program { command: &words, given, allowed: &self.environment, seconds: self.seconds };
        let mut worker = Worker::of(program.start(Stdio::piped(), context)?, self, context, known)?;
        let hello = json!({
            "file": known.directory.join(&self.file), "function": self.function, "directory": known.directory,
            "arguments": self.arguments, "columns": columns, "input": input, "batch": self.batch,
        });
        worker.greet(&hello)?;
        Ok(worker)
    }
}
