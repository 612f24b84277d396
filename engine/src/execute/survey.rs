//! What a run would do, without doing it: which nodes are known, which would run, and why.

use std::collections::BTreeMap;
use std::path::Path;

use indexmap::IndexMap;
use serde_json::Value;

use super::decide::{Decider, Decision, Look, Pending};
use super::history::History;
use super::identity::Known;
use super::request::Request;
use super::versions::version;
use super::work::Work;
use crate::fingerprint::{NodeKey, Reason, SourceDigests, SourceProblem};
use crate::operator::Inputs;
use crate::plan::{Node, Plan, with_all_before};
use crate::store::{NodeResult, NodeRun, OutputRecord, Store, StoreError};

/// What would happen to a node.
#[derive(Clone, Debug)]
pub enum NodeStatus {
    /// Its result is known.
    Cached {
        /// Its key.
        key: NodeKey,
        /// The result.
        result: Box<NodeResult>,
    },
    /// It is frozen, and what it gave last is there.
    Frozen {
        /// What it gave.
        last: Box<NodeRun>,
    },
    /// It would run.
    Run {
        /// Its key.
        key: NodeKey,
        /// What the key is made of.
        preimage: Value,
        /// Why.
        reasons: Vec<Reason>,
    },
    /// It would run and may not: it is not chosen.
    Held {
        /// Its key.
        key: NodeKey,
        /// What the key is made of.
        preimage: Value,
        /// Why it would run.
        reasons: Vec<Reason>,
    },
    /// It depends on nodes that would run, or on a file that is still to be fetched: its key is not known before. If
    /// they give the same bytes as last time, it will not run.
    Unknown {
        /// What it waits for.
        waits_for: Vec<String>,
        /// What its key will be made of, as far as that is known.
        preimage: Value,
        /// What of that has changed already: then only an earlier result of the same key keeps it from running.
        reasons: Vec<Reason>,
    },
    /// A source cannot be read.
    Broken {
        /// Why.
        problem: String,
    },
}

impl NodeStatus {
    /// Is its result there, so that it will not run?
    #[must_use]
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Cached { .. } | Self::Frozen { .. })
    }

    /// Its outputs, where they are known.
    fn outputs(&self) -> Option<&IndexMap<String, OutputRecord>> {
        match self {
            Self::Cached { result, .. } => Some(&result.outputs),
            Self::Frozen { last } => Some(&last.outputs),
            _ => None,
        }
    }

    /// What its key is made of, as far as that is known.
    #[must_use]
    pub fn preimage(&self) -> Option<&Value> {
        match self {
            Self::Cached { result, .. } => Some(&result.preimage),
            Self::Run { preimage, .. } | Self::Held { preimage, .. } | Self::Unknown { preimage, .. } => Some(preimage),
            Self::Frozen { .. } | Self::Broken { .. } => None,
        }
    }

    fn of(decision: Decision) -> Self {
        match decision {
            Decision::Frozen(last) => Self::Frozen { last },
            Decision::Cached { key, result } => Self::Cached { key, result },
            Decision::Run(pending) => {
                let Pending { key, preimage, reasons, .. } = *pending;
                Self::Run { key, preimage, reasons }
            }
            Decision::Held(pending) => {
                let Pending { key, preimage, reasons, .. } = *pending;
                Self::Held { key, preimage, reasons }
            }
            Decision::Waits { on, preimage, reasons } => Self::Unknown { waits_for: on, preimage, reasons },
            Decision::Broken(SourceProblem::NotFetched { address }) => {
                let waits_for = vec![format!("`{address}`, which a run fetches")];
                Self::Unknown { waits_for, preimage: Value::Null, reasons: Vec::new() }
            }
            Decision::Broken(problem) => Self::Broken { problem: problem.to_string() },
            Decision::Unfetched(error) | Decision::Misfit(error) => Self::Broken { problem: error.message },
        }
    }
}

/// The status of the nodes that are asked about.
#[derive(Clone, Debug)]
pub struct Survey {
    /// By place in the plan.
    pub nodes: BTreeMap<usize, NodeStatus>,
    /// What those still have to ask that would ask an endpoint.
    pub work: BTreeMap<usize, Work>,
}

/// Looks up the nodes that a run with that request would be about.
///
/// # Errors
/// When the store cannot be read.
pub fn survey(plan: &Plan, store: &Store, request: Request<'_>) -> Result<Survey, StoreError> {
    let history = History::before("");
    let decider = Decider { plan, store, request, history: &history };
    let wanted = request.selected.map(|selected| with_all_before(plan, selected));
    let mut known = Known::new();
    let sources = SourceDigests::new(store.known_sources(), version);
    let (mut nodes, mut work) = (BTreeMap::new(), BTreeMap::new());
    for (place, node) in plan.nodes().iter().enumerate() {
        if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&place)) {
            continue;
        }
        let decision = decider.decide(place, &known, &sources, Look::There)?;
        work.extend(Some(place).zip(work_of(store, node, &decision, &known, request.directory)));
        let status = NodeStatus::of(decision);
        if let Some(outputs) = status.outputs() {
            known.insert(place, outputs.clone());
        }
        nodes.insert(place, status);
    }
    Ok(Survey { nodes, work })
}

/// Of these places, those whose results are not known. The store is only asked where there are any.
///
/// # Errors
/// When the store cannot be read.
pub fn not_known(
    plan: &Plan,
    store: &Store,
    request: Request<'_>,
    mut places: Vec<usize>,
) -> Result<Vec<usize>, StoreError> {
    if !places.is_empty() {
        let survey = survey(plan, store, request)?;
        places.retain(|place| survey.nodes.get(place).is_some_and(|status| !status.is_known()));
    }
    Ok(places)
}

/// What a node still has to ask that asks an endpoint.
fn work_of(store: &Store, node: &Node, decision: &Decision, known: &Known, directory: &Path) -> Option<Work> {
    let pending = match decision {
        Decision::Run(pending) => Some(pending),
        Decision::Waits { .. } | Decision::Broken(SourceProblem::NotFetched { .. }) => None,
        _ => return None,
    };
    let endpoint = node.operator.declaration.endpoint.clone()?;
    let work = || {
        let Pending { parts, reasons, .. } = pending?.as_ref();
        let forced = reasons.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
        let mut inputs = Inputs::new();
        let mut all = true;
        for input in &node.inputs {
            let record = known.get(&input.node)?.get(&input.output)?;
            // Of a shared store, only the rows are fetched for a plan.
            if Some(&input.port) == node.main_port.as_ref() || store.is_here(&record.id) {
                inputs.bind(&input.port, store.open_input(&record.id).ok()?);
            } else {
                all = false;
            }
        }
        match Work::of(store, node, parts, &inputs, forced, all.then_some(directory)) {
            Ok(work) => Some(work),
            Err(error) => {
                tracing::warn!("what `{}` has to ask cannot be counted: {}", node.id(), error.message);
                None
            }
        }
    };
    Some(work().unwrap_or_else(|| Work::later(endpoint)))
}

/// Places of the nodes whose result is known and lacks rows: rejects of external nodes, and rows that `on_error: drop`
/// passed over.
///
/// # Errors
/// When the store cannot be read.
pub fn failed_rows(plan: &Plan, store: &Store, request: Request<'_>) -> Result<Vec<usize>, StoreError> {
    let survey = survey(plan, store, request)?;
    let failed = |status: &NodeStatus| match status {
        NodeStatus::Cached { result, .. } => result.dropped > 0,
        NodeStatus::Run { reasons, .. } => reasons.iter().any(|reason| matches!(reason, Reason::RejectsRetried { .. })),
        _ => false,
    };
    Ok(survey.nodes.iter().filter(|(_, status)| failed(status)).map(|(place, _)| *place).collect())
}
