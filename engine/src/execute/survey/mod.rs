//! Predicts a run without running it: which nodes are cached, which would run, and why.

pub(super) mod estimate;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use self::estimate::Work;
use super::decide::loop_decision::settled;
use super::decide::{Decider, Decision, History, Known, Look, Pending};
use super::process::version;
use super::settings::options::Request;
use crate::fingerprint::{NodeKey, Reason, SourceDigests, SourceProblem};
use crate::operator::Inputs;
use crate::plan::{Loop, Node, NodeIndex, OfLoop, Plan, with_all_before};
use crate::spec::service_of;
use crate::store::{NodeResult, NodeRun, Store, StoreError};

/// What a run would do with a node.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum NodeStatus {
    /// The result is cached.
    Cached {
        /// The node's key.
        key: NodeKey,
        /// The result.
        result: Box<NodeResult>,
        /// Outputs whose files were released.
        released: Vec<String>,
    },
    /// The node is frozen and its last result exists.
    Frozen {
        /// The last result.
        last: Box<NodeRun>,
    },
    /// The node would run.
    Run {
        /// The node's key.
        key: NodeKey,
        /// The preimage of the key.
        preimage: Value,
        /// Why it would run.
        reasons: Vec<Reason>,
    },
    /// The node has no result but is not selected to run.
    Held {
        /// The node's key.
        key: NodeKey,
        /// The preimage of the key.
        preimage: Value,
        /// Why it would run.
        reasons: Vec<Reason>,
    },
    /// The key is unknown: the node depends on nodes that would run, or on a file still to be fetched. It will not run
    /// if they produce the same bytes as last time.
    Unknown {
        /// The nodes or files it waits for.
        waits_for: Vec<String>,
        /// The known part of the future preimage.
        preimage: Value,
        /// Changes known so far; with any, only an earlier result of the same key avoids a run.
        reasons: Vec<Reason>,
    },
    /// The node does not run because a loop ended.
    Ended {
        /// What it needs, if it is outside the loop, and why the loop ended.
        why: String,
        /// The node of a later round that this node needs, directly or through another node. `None` if this node is itself
        /// of a later round.
        needs: Option<String>,
    },
    /// A source cannot be read.
    Broken {
        /// Why not.
        problem: String,
    },
}

impl NodeStatus {
    /// Whether it is known that the node will not run: its result exists, or a loop ended before it.
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Cached { .. } | Self::Frozen { .. } | Self::Ended { .. })
    }

    /// Whether a run would compute the node: not known, not held, and its sources can be read. With [`Self::Unknown`], a
    /// node before it may still turn out to produce the bytes of last time: then it does not run.
    pub fn would_run(&self) -> bool {
        matches!(self, Self::Run { .. } | Self::Unknown { .. })
    }

    /// Returns why the node would run, as far as it is known. Each prints as a sentence.
    pub fn reasons(&self) -> &[Reason] {
        match self {
            Self::Run { reasons, .. } | Self::Held { reasons, .. } | Self::Unknown { reasons, .. } => reasons,
            Self::Cached { .. } | Self::Frozen { .. } | Self::Ended { .. } | Self::Broken { .. } => &[],
        }
    }

    /// Whether the node is of a round after the end of its loop.
    pub fn is_after_the_end(&self) -> bool {
        matches!(self, Self::Ended { needs: None, .. })
    }

    /// Returns the preimage of the key, as far as it is known.
    pub fn preimage(&self) -> Option<&Value> {
        match self {
            Self::Cached { result, .. } => Some(&result.preimage),
            Self::Run { preimage, .. } | Self::Held { preimage, .. } | Self::Unknown { preimage, .. } => Some(preimage),
            Self::Frozen { .. } | Self::Ended { .. } | Self::Broken { .. } => None,
        }
    }

    fn of(decision: Decision) -> Self {
        match decision {
            Decision::Frozen(last) => Self::Frozen { last },
            Decision::Cached { key, result, released } => Self::Cached { key, result, released },
            Decision::Run(node) => Self::Run { key: node.key, preimage: node.preimage, reasons: node.reasons },
            Decision::Held(node) => Self::Held { key: node.key, preimage: node.preimage, reasons: node.reasons },
            Decision::Waits { on, preimage, reasons } => {
                Self::Unknown { waits_for: on.into_iter().map(String::from).collect(), preimage, reasons }
            }
            Decision::Broken(SourceProblem::NotFetched(address)) => {
                let waits_for = vec![format!("`{address}`, which a run fetches")];
                Self::Unknown { waits_for, preimage: Value::Null, reasons: Vec::new() }
            }
            Decision::Broken(problem) => Self::Broken { problem: problem.to_string() },
            Decision::Unfetched(error) | Decision::Misfit(error) => Self::Broken { problem: error.text() },
        }
    }
}

/// The status of the requested nodes.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Status by index in the plan.
    pub nodes: BTreeMap<NodeIndex, NodeStatus>,
    /// Work left for the nodes that would call an endpoint: of `Session::estimate` and `Session::rehearse`, else empty.
    pub work: BTreeMap<NodeIndex, Work>,
    /// Loops about which rows decide, with their ends as far as they are known.
    pub loops: Vec<Loop>,
    /// What loops hand on, as far as it is known which rounds they are of.
    pub(crate) of_loops: Vec<OfLoop>,
}

/// Looks up the nodes that a run with that request would consider.
///
/// # Errors
/// Fails if the store cannot be read.
pub(crate) fn survey(plan: &Plan, store: &Store, request: Request<'_>) -> Result<Survey, StoreError> {
    let history = History::before("");
    let wanted = request.selected.map(|selected| with_all_before(plan, selected));
    let mut known = Known::new();
    let sources = SourceDigests::new(store.known_sources(), version);
    let (mut nodes, mut work) = (BTreeMap::new(), BTreeMap::new());
    let mut plan = Cow::Borrowed(plan);
    for index in plan.indices() {
        if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&index)) {
            continue;
        }
        let open = open(&plan, index, &known);
        let status = match (plan.ended(index), open) {
            (Some(end), _) => NodeStatus::Ended { why: end.to_string(), needs: end.needs.map(ToString::to_string) },
            // Its inputs depend on how a loop ends.
            (None, Some((waits_for, true))) => {
                NodeStatus::Unknown { waits_for, preimage: Value::Null, reasons: Vec::new() }
            }
            (None, open) => {
                let decider = Decider { plan: &plan, store, request, history: &history };
                let decision = decider.decide(index, &known, &sources, Look::There)?;
                if request.estimates
                    && let Some(left) = work_of(store, &plan[index], &decision, &known, request.directory)
                {
                    work.insert(index, left);
                }
                match (NodeStatus::of(decision), open) {
                    // Whether it runs is known once the loop before it ends.
                    (NodeStatus::Run { preimage, reasons, .. }, Some((waits_for, _))) => {
                        NodeStatus::Unknown { waits_for, preimage, reasons }
                    }
                    (status, _) => status,
                }
            }
        };
        let outputs = match &status {
            NodeStatus::Cached { result, .. } => Some(&result.outputs),
            NodeStatus::Frozen { last } => Some(&last.outputs),
            _ => None,
        };
        if let Some(outputs) = outputs {
            known.insert(index, outputs.clone());
            match settled(&plan, store, index, outputs) {
                Ok(Some(settled)) => plan = Cow::Owned(settled),
                Ok(None) => {}
                // A run reports it, and computes the decision again.
                Err(error) => tracing::warn!("{}", error.message),
            }
        }
        nodes.insert(index, status);
    }
    made_again(&plan, &mut nodes);
    Ok(Survey { nodes, work, loops: plan.loops().to_vec(), of_loops: plan.all_of_loops() })
}

/// Returns the first decision on which it depends whether a node runs, and whether its inputs depend on it, too.
fn open(plan: &Plan, index: NodeIndex, known: &Known) -> Option<(Vec<String>, bool)> {
    let awaited = plan.awaited(index)?;
    // Without the decision of one round, there is none of a later one.
    awaited.decisions().last().filter(|last| !known.contains_key(last))?;
    let decision = awaited.decisions().find(|decision| !known.contains_key(decision))?;
    Some((vec![plan[decision].id().to_string()], awaited.inputs))
}

/// Of nodes whose outputs were released, marks those that would run again: a node that would run takes such an output, or
/// may run and takes it.
fn made_again(plan: &Plan, nodes: &mut BTreeMap<NodeIndex, NodeStatus>) {
    if !nodes.values().any(|status| matches!(status, NodeStatus::Cached { released, .. } if !released.is_empty())) {
        return;
    }
    // From the end, because a node stands behind those that it reads, and one that is made again reads others in turn.
    for index in plan.indices().rev() {
        let user = match nodes.get(&index) {
            Some(NodeStatus::Run { .. }) => None,
            Some(NodeStatus::Unknown { .. }) => Some(plan[index].id().to_owned()),
            _ => continue,
        };
        for input in &plan[index].inputs {
            let Some(NodeStatus::Cached { key, result, released }) = nodes.get(&input.node) else { continue };
            if !released.contains(&input.output) {
                continue;
            }
            let (key, preimage) = (*key, result.preimage.clone());
            let reasons = vec![Reason::Released { port: input.output.clone() }];
            let status = match &user {
                None => NodeStatus::Run { key, preimage, reasons },
                Some(user) => NodeStatus::Unknown { waits_for: vec![user.to_string()], preimage, reasons },
            };
            nodes.insert(input.node, status);
        }
    }
}

/// Returns those of `indices` whose results are unknown. Reads the store only if `indices` is not empty.
///
/// # Errors
/// Fails if the store cannot be read.
pub(crate) fn not_known(
    plan: &Plan,
    store: &Store,
    request: Request<'_>,
    mut indices: Vec<NodeIndex>,
) -> Result<Vec<NodeIndex>, StoreError> {
    if !indices.is_empty() {
        let survey = survey(plan, store, request)?;
        indices.retain(|index| survey.nodes.get(index).is_some_and(|status| !status.is_known()));
    }
    Ok(indices)
}

/// Returns the work left for a node that calls an endpoint.
fn work_of(store: &Store, node: &Node, decision: &Decision, known: &Known, directory: &Path) -> Option<Work> {
    let prices = node.operator.declaration.endpoint.as_ref()?.prices.clone();
    let work = match decision {
        Decision::Run(pending) => work_now(store, node, pending, known, directory),
        Decision::Waits { .. } | Decision::Broken(SourceProblem::NotFetched(_)) => None,
        _ => return None,
    };
    Some(work.unwrap_or(Work { rows: None, at_most: false, estimate: None, basis: None, prices }))
}

/// Returns the work of a node that would run now; `None` if it cannot be counted.
fn work_now(store: &Store, node: &Node, pending: &Pending, known: &Known, directory: &Path) -> Option<Work> {
    let forced = pending.reasons.iter().any(|reason| matches!(reason, Reason::Forced | Reason::CacheOff));
    let mut inputs = Inputs::new();
    let mut all = true;
    for input in node.inputs.iter().filter(|input| service_of(&input.port).is_none()) {
        let record = known.get(&input.node)?.get(&input.output)?;
        // From a shared store, a plan fetches only the row input.
        if Some(&input.port) == node.main_port.as_ref() || store.is_here(&record.id) {
            inputs.bind(&input.port, store.open_input(&record.id).ok()?);
        } else {
            all = false;
        }
    }
    match Work::of(store, node, &pending.parts, &inputs, forced, all.then_some(directory)) {
        Ok(work) => Some(work),
        Err(error) => {
            tracing::info!("cannot count the calls of `{}`: {}", node.id(), error.message);
            None
        }
    }
}

/// Returns the indices of nodes whose result is known but lacks rows: rejects of external nodes, and rows dropped by
/// `on_error: drop`.
///
/// # Errors
/// Fails if the store cannot be read.
pub(crate) fn failed_rows(plan: &Plan, store: &Store, request: Request<'_>) -> Result<Vec<NodeIndex>, StoreError> {
    let mut nodes = survey(plan, store, request)?.nodes;
    nodes.retain(|_, status| match status {
        NodeStatus::Cached { result, .. } => result.dropped > 0,
        NodeStatus::Run { reasons, .. } => reasons.iter().any(|why| matches!(why, Reason::RejectsRetried { .. })),
        _ => false,
    });
    Ok(nodes.into_keys().collect())
}
