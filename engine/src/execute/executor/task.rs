//! The interface of an executor: a task and a handle to it.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::execute::job::{NodeJob, Ran};
use crate::execute::progress::NodeProgress;
use crate::operator::{ContextParts, OperatorError};

/// Runs kernels.
pub(in crate::execute) trait Executor: Send + Sync {
    /// Starts a task.
    fn submit(&self, task: Task) -> Handle;
}

/// One run of a node's kernel.
pub(in crate::execute) struct Task {
    pub(in crate::execute) job: Arc<NodeJob>,
    pub(in crate::execute) parts: ContextParts,
    pub(in crate::execute) progress: Arc<NodeProgress>,
}

/// A running task.
pub(in crate::execute) struct Handle(JoinHandle<Result<Ran, OperatorError>>);

impl Handle {
    /// Starts a task on a thread that may block.
    pub(super) fn blocking(work: impl FnOnce() -> Result<Ran, OperatorError> + Send + 'static) -> Self {
        Self(tokio::task::spawn_blocking(work))
    }

    /// Waits for the task to end.
    pub(in crate::execute) async fn outcome(self) -> Result<Ran, OperatorError> {
        ended(self.0).await
    }
}

/// Runs blocking work on another thread.
pub(in crate::execute) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OperatorError> + Send + 'static,
) -> Result<T, OperatorError> {
    ended(tokio::task::spawn_blocking(work)).await
}

async fn ended<T>(task: JoinHandle<Result<T, OperatorError>>) -> Result<T, OperatorError> {
    task.await.unwrap_or_else(|panic| Err(OperatorError::engine(panic_text(panic))))
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let text = error.try_into_panic().ok().and_then(|panic| {
        panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
    });
    format!("the operator panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
}
