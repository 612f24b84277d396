//! `worker exec`: runs one node for an active run. Internal command.

use searchmill_engine::{Failure, Session, WorkerPipes};

use crate::args::WorkerArgs;
use crate::display::{leave_now, worker_pipe};
use crate::exit::OK;

pub(super) fn worker(session: &Session, args: &WorkerArgs) -> Result<u8, Failure> {
    let WorkerArgs::Exec { task } = args;
    let pipes =
        WorkerPipes { orders: Box::new(std::io::stdin()), told: worker_pipe(), leave: Box::new(|| leave_now(130)) };
    session.work(task, pipes)?;
    Ok(OK)
}
