//! `worker exec`: runs one node for a run that is going on. Not for people.

use std::sync::Arc;

use searchmill_engine::execute::{WorkerPipes, work};

use crate::args::WorkerArgs;
use crate::exit::{Failure, OK};
use crate::pipeline::registry;

pub(super) fn worker(args: &WorkerArgs) -> Result<u8, Failure> {
    let WorkerArgs::Exec { task } = args;
    let pipes = WorkerPipes {
        orders: Box::new(std::io::stdin()),
        told: crate::display::worker_pipe(),
        leave: Box::new(|| crate::display::leave_now(130)),
    };
    work(task, &registry(), Arc::new(crate::secrets::look_up), pipes)?;
    Ok(OK)
}
