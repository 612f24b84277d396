//! Runs a kernel in a separate process on this machine.

use std::path::PathBuf;

use super::task::{Executor, Handle, Task};
use crate::execute::worker::run_in_worker;

/// A worker process, started for each task.
pub(super) struct Process {
    /// Path of the worker program.
    pub(super) program: PathBuf,
}

impl Executor for Process {
    fn submit(&self, task: Task) -> Handle {
        let program = self.program.clone();
        Handle::blocking(move || run_in_worker(&task.job, &task.parts, &program))
    }
}
