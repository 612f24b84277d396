//! Uses operators outside of a run.

use serde_json::Value;

use super::failure::Failure;
use super::open::Session;
use super::run::runtime;
use crate::error::{Blame, OperatorError};
use crate::operator::{BoundOperator, Context, ContextParts, http_client};

impl Session {
    /// Binds a relational operator to params.
    ///
    /// # Errors
    /// Fails if there is no such operator, or if the params do not fit it.
    pub(super) fn bind_relational(&self, operator: &str, params: Value) -> Result<BoundOperator, Failure> {
        let Some(entry) = self.registry().get(operator) else {
            return Err(Failure::Other(format!("there is no operator `{operator}`")));
        };
        let issue = match (entry.bind)(params) {
            Ok(bound) => match bound.declaration.issues.first() {
                Some(issue) => issue.clone(),
                None => return Ok(bound),
            },
            Err(issue) => issue,
        };
        Err(Failure::Usage { message: format!("`{}`: {}", issue.path, issue.message), help: issue.help })
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
        match work(&Context::new(ContextParts { threads, ..bare })) {
            // Params of a command or of the page, not of a pipeline: the caller can mend them.
            Err(error) if error.blame == Blame::Pipeline => {
                Err(Failure::Usage { message: error.message, help: error.help })
            }
            answer => Ok(answer?),
        }
    }
}
