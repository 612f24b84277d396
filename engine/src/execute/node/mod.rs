//! The life of a node. [`live`] is one function that reads from top to bottom:
//!
//! decide → begin → lease → compute → record → check → deliver → read what it decided about its loop.
//!
//! All that the node reads is settled before it starts, so it works on a snapshot ([`Upstream`]) and shares nothing
//! with other nodes but the [`Run`]. The driver gets one [`NodeDone`] at the end. It does what needs the whole: records
//! the node, settles the plan, releases folders, schedules, and starts nodes again.
//!
//! `job` has what the stages work with. `produce` takes the lease, runs the kernel by `executor` (here or in a `worker`,
//! with the node's `service`s and `endpoints`) and records the result. `lease_check` looks whether this machine may still
//! call. `result_checks`, `reject_share` and `deliver` come after the result is known.

pub(super) mod endpoints;
pub(super) mod job;
mod lease_check;
pub(super) mod worker;
mod service;
mod executor;
pub(super) mod deliver;
mod produce;
pub(super) mod reject_share;
mod result_checks;

use std::sync::Arc;

use self::deliver::{Delivery, deliver, hands_over};
use self::executor::blocking;
use self::job::{Ending, KnownResult, NodeJob, Run, Upstream};
use self::produce::{Cost, produce};
use self::result_checks::evaluate;
use super::decide::identity::Known;
use super::decide::loop_decision::{LoopDecision, is_open, read_decision};
use super::decide::{Decider, Decision, Look, Pending};
use crate::error::{Blame, OperatorError};
use crate::fingerprint::{NodeKey, Reason, SourceProblem};
use crate::plan::NodeIndex;
use crate::spec::OnFailure;
use crate::store::{CheckOutcome, Damage, NodeRun, StoreError};

/// What is decided about a node.
pub(super) enum Decided {
    /// Its result is known: from the store, or from a test.
    Known(KnownResult),
    /// It must run, or cannot.
    Open(Decision),
}

impl From<Decision> for Decided {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Frozen(last) => {
                Self::Known(KnownResult { key: last.key, outputs: last.outputs, ..KnownResult::default() })
            }
            Decision::Cached { result, .. } => Self::Known(KnownResult::stored(*result)),
            other => Self::Open(other),
        }
    }
}

/// The outcome of a node.
pub(super) struct NodeDone {
    pub(super) index: NodeIndex,
    /// Its key, once that is known.
    pub(super) key: Option<NodeKey>,
    /// Why its kernel ran, if it did.
    pub(super) reasons: Vec<Reason>,
    /// What it cost, if a result had to be produced.
    pub(super) cost: Option<Cost>,
    /// The outcomes of its checks, without secrets, if it has any and they were evaluated.
    pub(super) checks: Option<Vec<CheckOutcome>>,
    pub(super) outcome: Result<Success, Ending>,
}

/// What the driver makes known of a node whose result is known, checked and delivered.
pub(super) struct Success {
    pub(super) result: KnownResult,
    pub(super) delivery: Delivery,
    /// The failed check that holds back what is delivered behind it.
    pub(super) holds: Option<String>,
    /// What it decided about its loop, if it does.
    pub(super) decision: Option<LoopDecision>,
}

/// Runs a node from the decision about it (`None`: it is decided here, with that `look`) to its delivery.
pub(super) async fn live(
    run: Arc<Run>,
    index: NodeIndex,
    decided: Option<Decided>,
    look: Look,
    upstream: Upstream,
) -> NodeDone {
    let outcome = Err(Ending::NotStarted);
    let mut done = NodeDone { index, key: None, reasons: Vec::new(), cost: None, checks: None, outcome };
    done.outcome = stages(run, decided, look, Arc::new(upstream), &mut done).await;
    done
}

/// Goes through the stages of a node. What is known when a stage ends early is left in `done`.
async fn stages(
    run: Arc<Run>,
    decided: Option<Decided>,
    look: Look,
    upstream: Arc<Upstream>,
    done: &mut NodeDone,
) -> Result<Success, Ending> {
    let index = done.index;
    let node = run.node(index);

    // Decide: on another thread, because that may read files and wait for the network.
    let decided = if let Some(decided) = decided {
        decided
    } else {
        let (run, upstream) = (Arc::clone(&run), Arc::clone(&upstream));
        let decision = blocking(move || Ok(decide(&run, index, &upstream.known, look))).await;
        decision.map_err(Ending::Failed)?.map_err(Ending::StoreFailed)?.into()
    };

    // Produce the result, if it is not known.
    let result = match decided {
        Decided::Known(result) => result,
        Decided::Open(decision) => obtain(&run, decision, &upstream.known, done).await?,
    };
    done.key = result.key;
    let result = Arc::new(result);

    // Check: before anything is delivered.
    let mut holds = None;
    if has_checks(&run, index) {
        let (own, of, before) = (Arc::clone(&run), Arc::clone(&result), Arc::clone(&upstream));
        let outcomes = match blocking(move || evaluate(&own, index, &of, &before)).await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(damage)) => return Err(Ending::DamagedOutput(damage)),
            Err(error) => return Err(unchecked(Arc::unwrap_or_clone(result), error)),
        };
        let failed = failed_checks(&outcomes, OnFailure::Fail);
        holds = failed_checks(&outcomes, OnFailure::Hold);
        done.checks = Some(outcomes);
        if let Some(which) = failed {
            let id = node.id();
            let help = format!("the result is stored, and nothing after it ran; `searchmill show {id}` shows it");
            let error = OperatorError::data(format!("a check failed: {which}")).with_help(help);
            return Err(Ending::CheckFailed(Arc::unwrap_or_clone(result), error));
        }
    }
    let holds = holds.map(|which| format!("a check of `{}` failed: {which}", node.id()));

    // Deliver, unless a check or lost rows hold the outputs back.
    let mut delivery = Delivery::Done(Vec::new());
    if hands_over(node) {
        let (own, of, before, check) = (Arc::clone(&run), Arc::clone(&result), Arc::clone(&upstream), holds.clone());
        delivery = match blocking(move || deliver(&own, index, &of, &before, check)).await {
            Ok(delivery) => delivery,
            Err(error) if error.blame == Blame::Cancelled => {
                return Err(Ending::Interrupted(Arc::unwrap_or_clone(result)));
            }
            Err(error) => return Err(Ending::Undelivered(error)),
        };
    }

    // Read what it decided about its loop. What cannot be read is computed again.
    let mut decision = None;
    if is_open(&run.plan, index) {
        let (own, of) = (Arc::clone(&run), Arc::clone(&result));
        let read = blocking(move || read_decision(&own.plan, &own.store, index, &of.outputs)).await;
        decision = Some(read.map_err(|error| {
            tracing::warn!("{}", error.message);
            Ending::DamagedOutput(Damage::Corrupt)
        })?);
    }
    Ok(Success { result: Arc::unwrap_or_clone(result), delivery, holds, decision })
}

/// Decides about a node, given the outputs of its dependencies. Fetches files that the key needs.
pub(super) fn decide(run: &Run, index: NodeIndex, known: &Known, look: Look) -> Result<Decision, StoreError> {
    let request = run.options.request();
    let decider = Decider { plan: &run.plan, store: &run.store, request, history: &run.history };
    let decided = decider.decide(index, known, &run.sources, look)?;
    if !matches!(decided, Decision::Broken(SourceProblem::NotFetched(_))) {
        return Ok(decided);
    }
    let node = run.node(index);
    match node.operator.declaration.fetch(&run.bare_context(node)) {
        Ok(()) => decider.decide(index, known, &run.sources, look),
        Err(error) => Ok(Decision::Unfetched(error)),
    }
}

/// Produces the result of a node that must run; ends it if it cannot.
async fn obtain(run: &Arc<Run>, decision: Decision, known: &Known, done: &mut NodeDone) -> Result<KnownResult, Ending> {
    match &decision {
        Decision::Unfetched(error) if error.blame == Blame::Cancelled => return Err(Ending::NotStarted),
        Decision::Broken(SourceProblem::Stopped) | Decision::Run(_) if run.stop.is_draining() => {
            return Err(Ending::NotStarted);
        }
        _ => {}
    }
    // Nothing starts on a store that has lost its place, whatever was decided.
    run.store.sound().map_err(|error| Ending::Failed(error.into()))?;
    let pending = startable(decision).map_err(Ending::Failed)?;
    (done.key, done.reasons) = (Some(pending.key), pending.reasons.clone());
    // Recorded and flushed before any work: a killed run leaves a record of what it had started.
    let (node, preimage) = (run.node(done.index), pending.preimage.clone());
    let begun = NodeRun::begun(node.id(), node.entry.name, pending.key, pending.reasons.clone(), preimage);
    run.begin(&begun).map_err(Ending::StoreFailed)?;
    let (produced, cost) = produce(job(run, done.index, *pending, known)).await;
    done.cost = Some(cost);
    produced
}

/// Returns the pending node, or why it cannot run. Cached results are settled before.
fn startable(decision: Decision) -> Result<Box<Pending>, OperatorError> {
    match decision {
        Decision::Run(pending) => Ok(pending),
        Decision::Held(_) => {
            let error = OperatorError::pipeline("it was not chosen to run, and its result is not in the store");
            Err(error.with_help("run it first, or omit `--from` and `--only`"))
        }
        Decision::Broken(SourceProblem::Stopped) => {
            Err(OperatorError::machine("a source cannot be read: the file system timed out"))
        }
        Decision::Broken(problem @ SourceProblem::Changing(_)) => {
            Err(OperatorError::machine(problem.to_string()).with_help("run it again when nothing writes to that place"))
        }
        Decision::Broken(problem) => Err(OperatorError::pipeline(problem.to_string())),
        Decision::Unfetched(error) | Decision::Misfit(error) => Err(error),
        Decision::Waits { .. } | Decision::Frozen(_) | Decision::Cached { .. } => {
            Err(OperatorError::engine("the inputs of the node are unknown"))
        }
    }
}

/// Whether the checks of a node are evaluated. Rows of a test are few, and made up.
fn has_checks(run: &Run, index: NodeIndex) -> bool {
    !run.node(index).spec.checks.is_empty() && run.options.trial.is_none()
}

/// Whether a node whose result is known has nothing more to do.
pub(super) fn is_settled_at_once(run: &Run, index: NodeIndex) -> bool {
    !has_checks(run, index) && !hands_over(run.node(index)) && !is_open(&run.plan, index)
}

fn job(run: &Arc<Run>, index: NodeIndex, pending: Pending, known: &Known) -> NodeJob {
    let Pending { parts, key, preimage, reasons } = pending;
    let node = run.node(index);
    let recall = !reasons.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for input in &node.inputs {
        inputs.extend(known.get(&input.node).and_then(|outputs| outputs.get(&input.output)).cloned());
    }
    let session = run.endpoints.session(node);
    let calls = run.endpoints.calls(node, &parts, &run.store);
    let observed = run.endpoints.observed(node, &parts, &run.store);
    NodeJob { run: Arc::clone(run), index, key, preimage, parts, inputs, reasons, recall, session, calls, observed }
}

/// Joins the failed checks that have this reaction; `None`: there are none.
fn failed_checks(outcomes: &[CheckOutcome], reaction: OnFailure) -> Option<String> {
    let failed = outcomes.iter().filter(|one| !one.passed && one.check.on_failure == reaction);
    let words: Vec<String> = failed.map(ToString::to_string).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// How a node ends whose checks were interrupted, or could not be evaluated on this machine. Its result is stored.
fn unchecked(result: KnownResult, error: OperatorError) -> Ending {
    if error.blame == Blame::Cancelled {
        return Ending::Interrupted(result);
    }
    let message = format!("its checks cannot be evaluated: {}", error.message);
    Ending::CheckFailed(result, OperatorError { message, ..error })
}
