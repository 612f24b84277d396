//! One node from lease to record: wait for other holders, run, commit, write the result.
//!
//! `run` is what all nodes of a run share, `job` one node to be run. `compute` prepares and records, `executor` runs the
//! kernel here or in a `worker`, with the node's `service`s and `endpoints`. `lease_check` looks whether this machine may
//! still call. `result_checks` and `deliver` come after the result is known.

pub(super) mod period_budget;
pub(super) mod endpoints;
pub(super) mod run;
pub(super) mod job;
pub(super) mod context;
mod lease_check;
pub(super) mod worker;
mod service;
mod executor;
mod compute;
pub(super) mod result_checks;
pub(super) mod deliver;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::compute::compute;
use self::executor::blocking;
use self::job::NodeJob;
use self::lease_check::LeaseCheck;
use super::decide::lookup::{Lookup, has_floor, look_up};
use crate::endpoint::{FailedCalls, Usage};
use crate::error::{Blame, OperatorError};
use crate::fingerprint::{NodeKey, Reason};
use crate::operator::{Effect, PortType, TreeKind};
use crate::plan::NodeIndex;
use crate::report::Event;
use crate::store::{Damage, NodeResult};

/// Pause before a changing source is read again.
const WRITERS_PAUSE: Duration = Duration::from_millis(300);

/// The outcome of a node.
pub(super) struct NodeDone {
    pub(super) index: NodeIndex,
    pub(super) key: NodeKey,
    pub(super) reasons: Vec<Reason>,
    pub(super) outcome: Result<NodeResult, OperatorError>,
    /// Another process computed the result meanwhile.
    pub(super) reused: bool,
    pub(super) cached_rows: u64,
    /// Rows that were not asked because a budget was used up.
    pub(super) unasked: u64,
    /// The node's cost, also if it failed.
    pub(super) spent: Usage,
    /// Its attempts at calls that failed.
    pub(super) failed_calls: FailedCalls,
    pub(super) seconds: f64,
    /// An input found damaged before the kernel ran: its position among the inputs, and the damage.
    pub(super) damaged: Option<(usize, Damage)>,
    /// Another machine took the node over while this one was suspended.
    pub(super) taken_over: bool,
}

pub(super) async fn run_node(job: NodeJob) -> NodeDone {
    let start = Instant::now();
    let (index, key, reasons) = (job.index, job.key, job.reasons.clone());
    let (paid, attempts) = (Arc::clone(&job.session.node), Arc::clone(&job.session.attempts));
    let done = |outcome: Result<NodeResult, OperatorError>, reused, cached_rows| {
        let seconds = start.elapsed().as_secs_f64();
        let spent = match &outcome {
            Ok(_) if reused => Usage::default(),
            Ok(result) => result.usage(),
            Err(_) => paid.spent(),
        };
        NodeDone {
            index,
            key,
            reasons,
            outcome,
            reused,
            cached_rows,
            unasked: 0,
            spent,
            failed_calls: attempts.so_far(),
            seconds,
            damaged: None,
            taken_over: false,
        }
    };
    let lease = match take_lease(&job, &key).await {
        Ok(lease) => Arc::new(lease),
        Err(error) => return done(Err(error), false, 0),
    };
    let looked = blocking(move || look_again(&job).map(|found| (job, found))).await;
    let mut job = match looked {
        Ok((job, Found::Nothing)) => job,
        Ok((_, Found::Made(result))) => return done(Ok(*result), true, 0),
        Ok((_, Found::Damaged(index, damage))) => {
            return NodeDone { damaged: Some((index, damage)), ..done(Err(OperatorError::cancelled()), false, 0) };
        }
        Err(error) => return done(Err(error), false, 0),
    };
    let asks = job.node().operator.declaration.pays();
    let lease_check = LeaseCheck::new(&job.run.store, key, Arc::clone(&lease), asks);
    if asks {
        job.session.permit = Some(lease_check.clone());
    }
    let computed = compute(Arc::new(job), start, asks.then_some(&*lease_check)).await;
    drop(lease);
    if lease_check.is_over() {
        return NodeDone { taken_over: true, ..done(Err(OperatorError::cancelled()), false, 0) };
    }
    if matches!(&computed, Err(error) if error.blame == Blame::Changed) {
        // The node will run again; give the writer time to finish.
        tokio::time::sleep(WRITERS_PAUSE).await;
    }
    match computed {
        Ok((result, rows)) => NodeDone { unasked: rows.unasked, ..done(Ok(result), false, rows.cached_rows) },
        Err(error) => done(Err(error), false, 0),
    }
}

/// What is found once the lease is held.
enum Found {
    /// Another process or machine computed the result meanwhile.
    Made(Box<NodeResult>),
    /// This input is damaged.
    Damaged(usize, Damage),
    Nothing,
}

fn look_again(job: &NodeJob) -> Result<Found, OperatorError> {
    if let Some(result) = made_meanwhile(job) {
        return Ok(Found::Made(result));
    }
    job.run.store.sound()?;
    Ok(damaged_input(job)?.map_or(Found::Nothing, |(index, damage)| Found::Damaged(index, damage)))
}

fn made_meanwhile(job: &NodeJob) -> Option<Box<NodeResult>> {
    if !job.recall {
        return None;
    }
    let node = job.node();
    if has_floor(node) {
        job.run.store.forget_floor(&job.parts.row_base(node));
    }
    match look_up(&job.run.store, node, &job.parts, &job.key, (job.run.options.asked.retry(), true)) {
        Lookup::Hit(result, _) => Some(result),
        Lookup::Miss(_) => None,
    }
}

/// Fetches the inputs, compares them with their digests and returns the first damaged one. Inputs of expensive nodes
/// (external, or reading a model) are compared every time, others once per run.
fn damaged_input(job: &NodeJob) -> Result<Option<(usize, Damage)>, OperatorError> {
    let node = job.node();
    let learns = node.inputs.iter().any(|input| input.port_type == PortType::Tree(TreeKind::Model));
    let dear = learns || node.operator.declaration.effect == Effect::External;
    let begun = Instant::now();
    for (index, input) in job.inputs.iter().enumerate() {
        let state = if dear { job.run.store.intact(&input.id)? } else { job.run.store.intact_once(&input.id)? };
        if let Err(damage) = state {
            return Ok(Some((index, damage)));
        }
    }
    let bytes: u64 = job.inputs.iter().map(|input| input.bytes).sum();
    tracing::debug!("inputs of `{}` ({bytes} bytes) compared in {:.6} s", node.id(), begun.elapsed().as_secs_f64());
    Ok(None)
}

async fn take_lease(job: &NodeJob, key: &NodeKey) -> Result<crate::store::Lease, OperatorError> {
    if let Some(lease) = job.run.store.try_lease(key)? {
        return Ok(lease);
    }
    let node = job.node().id().to_owned();
    job.run.reporter.event(&Event::NodeWaiting { node });
    let stop = job.run.stop.clone();
    let lease = job.run.store.lease(key, move || stop.is_draining()).await?;
    lease.ok_or_else(OperatorError::cancelled)
}
