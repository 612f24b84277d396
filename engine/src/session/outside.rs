//! Uses operators outside of a run.

use std::ops::ControlFlow;
use std::path::PathBuf;

use arrow::array::RecordBatch;
use serde_json::Value;

use super::failure::Failure;
use super::open::Session;
use super::run::runtime;
use crate::execute::run_query;
use crate::operator::{
    Blame, Context, ContextParts, InputArtifact, Inputs, Kernel, OperatorError, OutputSink, ParamIssue, RowsInput,
    http_client,
};

/// Receives rows, batch by batch. `Break` ends the computation.
pub type Receiver<'a> = dyn FnMut(&RecordBatch) -> Result<ControlFlow<()>, Failure> + Send + 'a;

impl Session {
    /// Passes rows through a relational operator with one input, and gives its rows to `each` while they are computed.
    /// Nothing is recorded. Not for code that already runs on tokio.
    ///
    /// # Errors
    /// Fails if the params do not fit the operator or the rows, or if `each` fails.
    pub fn pass(
        &self,
        operator: &str,
        params: Value,
        rows: &RowsInput,
        each: &mut Receiver<'_>,
    ) -> Result<(), Failure> {
        let entry = self.registry().get(operator);
        let entry = entry.ok_or_else(|| Failure::Other(format!("there is no operator `{operator}`")))?;
        let bound = (entry.bind)(params).map_err(invalid)?;
        if let Some(issue) = bound.declaration.issues.first() {
            return Err(invalid(issue.clone()));
        }
        let mut inputs = Inputs::new();
        if let Some(port) = bound.declaration.ports.inputs.first() {
            inputs.bind(&port.name, InputArtifact::Rows(rows.clone()));
        }
        let mut receiving = Receiving { each, ended: None };
        let ran = self.with_context(|context| match bound.open(&inputs, context)? {
            Kernel::Query(kernel) => {
                context.block_on(run_query(kernel.as_ref(), &inputs, &mut receiving, context)).map(drop)
            }
            _ => Err(OperatorError::engine(format!("`{operator}` is not relational"))),
        });
        receiving.ended.unwrap_or(ran)
    }

    /// Calls `work` with the context of an operator: all threads, no seed, no secrets. Not for code that already runs
    /// on tokio.
    ///
    /// # Errors
    /// Fails if `work` does.
    pub fn with_context<T>(&self, work: impl FnOnce(&Context) -> Result<T, OperatorError>) -> Result<T, Failure> {
        let runtime = runtime()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let bare = ContextParts::bare(self.directory(), runtime.handle(), http_client()?);
        work(&Context::new(ContextParts { threads, ..bare })).map_err(|error| match error.blame {
            Blame::Pipeline => Failure::Usage { message: error.message, help: error.help },
            _ => error.into(),
        })
    }
}

fn invalid(issue: ParamIssue) -> Failure {
    Failure::Usage { message: format!("`{}`: {}", issue.path, issue.message), help: issue.help }
}

/// Gives the rows of the first output to a receiver.
struct Receiving<'a, 'b> {
    each: &'a mut Receiver<'b>,
    /// How the receiver ended the computation.
    ended: Option<Result<(), Failure>>,
}

impl OutputSink for Receiving<'_, '_> {
    fn write(&mut self, _port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.ended = match (self.each)(batch) {
            Ok(ControlFlow::Continue(())) => return Ok(()),
            Ok(ControlFlow::Break(())) => Some(Ok(())),
            Err(failure) => Some(Err(failure)),
        };
        Err(OperatorError::cancelled())
    }

    fn tree(&mut self, _port: &str) -> Result<PathBuf, OperatorError> {
        Err(OperatorError::engine("relational operators output rows"))
    }

    fn figure(&mut self, _name: &str, _value: f64) {}

    fn summary(&mut self, _text: &str) {}
}
