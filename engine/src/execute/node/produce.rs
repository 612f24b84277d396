//! Produces the result of a node: waits for the lease, looks whether somebody else made it meanwhile, compares the
//! inputs, and computes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compute::compute;
use super::deliver::KnownResult;
use super::executor::blocking;
use super::job::NodeJob;
use super::lease_check::LeaseCheck;
use crate::endpoint::{FailedCalls, Usage};
use crate::error::{Blame, OperatorError};
use crate::events::Event;
use crate::execute::decide::lookup::{Lookup, has_floor, look_up};
use crate::operator::{Effect, PortType, TreeKind};
use crate::store::{Damage, Lease};

/// Pause before a changing source is read again.
const WRITERS_PAUSE: Duration = Duration::from_millis(300);

/// What came of an attempt to produce a result.
pub(super) enum Produced {
    /// The result, and the number of rows that were not asked because a budget was used up.
    Result(KnownResult, u64),
    /// The input at this position is damaged: the kernel did not run.
    DamagedInput(usize, Damage),
    /// Another machine took the node over while this one was suspended.
    TakenOver,
    /// There is no result.
    Failed(OperatorError),
}

/// What an attempt cost.
#[derive(Default)]
pub(crate) struct Cost {
    /// Calls, tokens and money, also if it failed.
    pub(crate) spent: Usage,
    /// Attempts at calls that failed.
    pub(crate) failed_calls: FailedCalls,
    pub(crate) seconds: f64,
}

/// Produces the result of a node whose inputs are known.
pub(super) async fn produce(job: NodeJob) -> (Produced, Cost) {
    let start = Instant::now();
    let (paid, attempts) = (Arc::clone(&job.session.node), Arc::clone(&job.session.attempts));
    let produced = attempt(job, start).await;
    let spent = match &produced {
        Produced::Result(KnownResult::Stored { .. }, _) => Usage::default(),
        Produced::Result(KnownResult::Computed { result, .. }, _) => result.usage(),
        Produced::DamagedInput(..) | Produced::TakenOver | Produced::Failed(_) => paid.spent(),
    };
    let cost = Cost { spent, failed_calls: attempts.so_far(), seconds: start.elapsed().as_secs_f64() };
    (produced, cost)
}

async fn attempt(job: NodeJob, start: Instant) -> Produced {
    // From here on, no other process computes this key.
    let lease = match take_lease(&job).await {
        Ok(lease) => Arc::new(lease),
        Err(error) => return Produced::Failed(error),
    };
    // Under the lease: what another process recorded before it gave the lease back is seen here.
    let looked = blocking(move || look_again(&job).map(|ending| (job, ending))).await;
    let mut job = match looked {
        Ok((job, None)) => job,
        Ok((_, Some(ending))) => return ending,
        Err(error) => return Produced::Failed(error),
    };
    let asks = job.node().operator.declaration.pays();
    let lease_check = LeaseCheck::new(&job.run.store, job.key, Arc::clone(&lease), asks);
    if asks {
        job.session.permit = Some(lease_check.clone());
    }
    let job = Arc::new(job);
    let computed = compute(Arc::clone(&job), start, asks.then_some(&*lease_check)).await;
    // The result is recorded: whoever waits for the lease finds it.
    drop(lease);
    if lease_check.is_over() {
        return Produced::TakenOver;
    }
    match computed {
        Ok((result, rows)) => {
            let (reasons, cached_rows) = (job.reasons.clone(), rows.cached_rows);
            Produced::Result(KnownResult::Computed { result: Box::new(result), reasons, cached_rows }, rows.unasked)
        }
        Err(error) => {
            if error.blame == Blame::Changed {
                // The node will run again; give the writer time to finish.
                tokio::time::sleep(WRITERS_PAUSE).await;
            }
            Produced::Failed(error)
        }
    }
}

/// Looks once the lease is held, and returns how the attempt ends here, if it does: another process or machine computed
/// the result meanwhile, or an input is damaged. Fetches the inputs and compares them with their digests: those of
/// expensive nodes (external, or reading a model) every time, others once per run.
fn look_again(job: &NodeJob) -> Result<Option<Produced>, OperatorError> {
    let (node, store) = (job.node(), &job.run.store);
    if job.recall {
        if has_floor(node) {
            // Another process may have raised it since it was read.
            store.forget_floor(&job.parts.row_base(node));
        }
        let retry = job.run.options.asked.retry();
        if let Lookup::Hit(result, _) = look_up(store, node, &job.parts, &job.key, retry, true) {
            return Ok(Some(Produced::Result(KnownResult::stored(*result), 0)));
        }
    }
    store.sound()?;
    let learns = node.inputs.iter().any(|input| input.port_type == PortType::Tree(TreeKind::Model));
    let is_expensive = learns || node.operator.declaration.effect == Effect::External;
    let begun = Instant::now();
    for (position, input) in job.inputs.iter().enumerate() {
        let state = if is_expensive { store.intact(&input.id)? } else { store.intact_once(&input.id)? };
        if let Err(damage) = state {
            return Ok(Some(Produced::DamagedInput(position, damage)));
        }
    }
    let bytes: u64 = job.inputs.iter().map(|input| input.bytes).sum();
    tracing::debug!("inputs of `{}` ({bytes} bytes) compared in {:.6} s", node.id(), begun.elapsed().as_secs_f64());
    Ok(None)
}

async fn take_lease(job: &NodeJob) -> Result<Lease, OperatorError> {
    if let Some(lease) = job.run.store.try_lease(&job.key)? {
        return Ok(lease);
    }
    job.run.reporter.event(&Event::NodeWaiting { node: job.node().id().to_owned() });
    let stop = job.run.stop.clone();
    let lease = job.run.store.lease(&job.key, move || stop.is_draining()).await?;
    lease.ok_or_else(OperatorError::cancelled)
}
