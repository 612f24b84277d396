//! Executors: where the kernel of a node runs.
//!
//! An executor gets a task, starts it and returns a handle at once. It decides nothing: keys, leases, retries of nodes and
//! the result record are the caller's. What a task made is read from the parts that were committed to the store.

mod here;
mod process;
mod task;

pub(super) use task::{Executor, Task, blocking};

use super::job::NodeJob;
use crate::operator::OperatorError;

/// Returns the executor of a node. Budgets and rate limits belong to this process, so nodes that call an endpoint run
/// here.
pub(super) fn executor(job: &NodeJob) -> Result<Box<dyn Executor>, OperatorError> {
    let node = job.node();
    if job.session.limiter.is_some() {
        return Ok(Box::new(here::Here));
    }
    let program = job.run.options.workers.program(&node.spec.resources, node.operator.declaration.runs_programs)?;
    Ok(match program {
        Some(program) => Box::new(process::Process { program: program.to_owned() }),
        None => Box::new(here::Here),
    })
}
