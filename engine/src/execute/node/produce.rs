//! Produces the result of a node: waits for the lease, looks whether somebody else made it meanwhile, compares the
//! inputs, and computes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compute::compute;
use super::executor::blocking;
use super::job::{Ending, Fresh, KnownResult, NodeJob};
use super::lease_check::LeaseCheck;
use crate::endpoint::{FailedCalls, Usage};
use crate::error::{Blame, OperatorError};
use crate::events::Event;
use crate::execute::decide::lookup::{Lookup, has_floor, look_up};
use crate::operator::{Effect, PortType, TreeKind};
use crate::store::Lease;

/// Pause before a changing source is read again.
const WRITERS_PAUSE: Duration = Duration::from_millis(300);

/// What an attempt cost.
#[derive(Default)]
pub(crate) struct Cost {
    /// Calls, tokens and money, also if it failed.
    pub(crate) spent: Usage,
    /// Attempts at calls that failed.
    pub(crate) failed_calls: FailedCalls,
    /// Rows that were not asked because a budget was used up.
    pub(crate) unasked: u64,
    pub(crate) seconds: f64,
}

/// Produces the result of a node whose inputs are known.
pub(super) async fn produce(job: NodeJob) -> (Result<KnownResult, Ending>, Cost) {
    let start = Instant::now();
    let (paid, attempts) = (Arc::clone(&job.session.node), Arc::clone(&job.session.attempts));
    let produced = attempt(job, start).await;
    let (spent, unasked) = match &produced {
        Ok(KnownResult { fresh: Some(fresh), .. }) => (fresh.record.usage(), fresh.unasked),
        Ok(_) => (Usage::default(), 0),
        Err(_) => (paid.spent(), 0),
    };
    let cost = Cost { spent, failed_calls: attempts.so_far(), unasked, seconds: start.elapsed().as_secs_f64() };
    (produced, cost)
}

async fn attempt(job: NodeJob, start: Instant) -> Result<KnownResult, Ending> {
    // From here on, no other process computes this key.
    let lease = Arc::new(take_lease(&job).await.map_err(Ending::Failed)?);
    // Under the lease: what another process recorded before it gave the lease back is seen here.
    let looked = blocking(move || look_again(&job).map(|known| (job, known))).await;
    let mut job = match looked.map_err(Ending::Failed)? {
        (job, None) => job,
        (_, Some(known)) => return known,
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
        return Err(Ending::TakenOver);
    }
    match computed {
        Ok((mut record, rows)) => {
            let (key, outputs) = (Some(record.key), std::mem::take(&mut record.outputs));
            let (figures, reasons) = (std::mem::take(&mut record.figures), job.reasons.clone());
            let fresh = Fresh { record, reasons, cached_rows: rows.cached_rows, unasked: rows.unasked };
            Ok(KnownResult { key, outputs, figures, fresh: Some(Box::new(fresh)) })
        }
        Err(error) => {
            if error.blame == Blame::Changed {
                // The node will run again; give the writer time to finish.
                tokio::time::sleep(WRITERS_PAUSE).await;
            }
            Err(Ending::Failed(error))
        }
    }
}

/// Looks once the lease is held, and returns how the attempt ends here, if it does: another process or machine computed
/// the result meanwhile, or an input is damaged. Fetches the inputs and compares them with their digests: those of
/// expensive nodes (external, or reading a model) every time, others once per run.
fn look_again(job: &NodeJob) -> Result<Option<Result<KnownResult, Ending>>, OperatorError> {
    let (node, store) = (job.node(), &job.run.store);
    if job.recall {
        if has_floor(node) {
            // Another process may have raised it since it was read.
            store.forget_floor(&job.parts.row_base(node));
        }
        let retry = job.run.options.asked.retry();
        if let Lookup::Hit(result, _) = look_up(store, node, &job.parts, &job.key, retry, true) {
            return Ok(Some(Ok(KnownResult::stored(*result))));
        }
    }
    store.sound()?;
    let learns = node.inputs.iter().any(|input| input.port_type == PortType::Tree(TreeKind::Model));
    let is_expensive = learns || node.operator.declaration.effect == Effect::External;
    let begun = Instant::now();
    for (position, input) in job.inputs.iter().enumerate() {
        let state = if is_expensive { store.intact(&input.id)? } else { store.intact_once(&input.id)? };
        if let Err(damage) = state {
            return Ok(Some(Err(Ending::DamagedInput(position, damage))));
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
