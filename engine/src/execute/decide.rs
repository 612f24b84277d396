//! Decides what becomes of a node: its result is known, it runs, it waits, it is held; and why. `run`, `plan`, `why` and
//! `status` all ask here.

use serde_json::Value;

use super::history::History;
use super::identity::{Known, Parts};
use super::lookup::{Lookup, damage_reason, look_up};
use super::request::{Request, Retry};
use crate::fingerprint::{Digest, NodeKey, Reason, SourceDigests, SourceProblem, diff};
use crate::operator::{Effect, OperatorError, PortType};
use crate::plan::{Node, Plan};
use crate::store::{NodeResult, NodeRun, OutputRecord, Store, StoreError};

/// What becomes of a node.
pub(super) enum Decision {
    /// It is frozen: what it gave last counts, whatever changed.
    Frozen(Box<NodeRun>),
    /// Its result is known.
    Cached { key: NodeKey, result: Box<NodeResult> },
    /// It runs.
    Run(Box<Pending>),
    /// It would run and may not: it was not chosen.
    Held(Box<Pending>),
    /// Its key is known once these nodes are done.
    Waits { on: Vec<String>, preimage: Value, reasons: Vec<Reason> },
    /// A source cannot be read.
    Broken(SourceProblem),
    /// A file that its key needs cannot be fetched.
    Unfetched(OperatorError),
    /// It is frozen, and what it gave before cannot be used.
    Misfit(OperatorError),
}

/// A node that has no result yet.
pub(super) struct Pending {
    pub(super) parts: Parts,
    pub(super) key: NodeKey,
    pub(super) preimage: Value,
    pub(super) reasons: Vec<Reason>,
}

/// How closely the files of a known result are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Planning: are they there, here or in the shared store?
    There,
    /// Running: folders that are handed over must be here.
    Here,
    /// A file of it was found damaged: everything is read and compared.
    Closely,
}

/// What is decided about all nodes of one plan.
#[derive(Clone, Copy)]
pub(super) struct Decider<'a> {
    pub(super) plan: &'a Plan,
    pub(super) store: &'a Store,
    pub(super) request: Request<'a>,
    pub(super) history: &'a History,
}

impl Decider<'_> {
    /// What becomes of the node at `place`, given the outputs that are known so far.
    pub(super) fn decide(
        &self,
        place: usize,
        known: &Known,
        sources: &SourceDigests,
        look: Look,
    ) -> Result<Decision, StoreError> {
        let node = &self.plan.nodes()[place];
        let kept = match self.kept(node) {
            Some(Ok(last)) if self.is_whole(last, look) => return Ok(Decision::Frozen(Box::new(last.clone()))),
            Some(Ok(last)) => Some(last),
            Some(Err(why)) => return Ok(Decision::Misfit(misfit(why))),
            None => None,
        };
        let (directory, limit) = (self.request.directory, self.request.limit);
        let parts = match Parts::gather(node, known, sources, directory, limit) {
            Err(problem) => return Ok(Decision::Broken(problem)),
            Ok(None) => return Ok(self.waits(node, known, sources)),
            Ok(Some(parts)) => parts,
        };
        let (key, preimage) = parts.key(node);
        // What a frozen node gave is damaged or gone: the same key gives the same again, no other one does.
        if kept.is_some_and(|last| last.key != Some(key)) {
            return Ok(Decision::Misfit(misfit(GONE)));
        }
        let may_run = self.request.may_run(place);
        let mut reasons = match self.request.forced(node).filter(|_| may_run) {
            Some(reason) => vec![reason],
            None => match self.look_up(node, &parts, &key, may_run, look)? {
                Lookup::Hit(result) => return Ok(Decision::Cached { key, result }),
                Lookup::Miss(found) => found,
            },
        };
        if kept.is_some() && node.operator.declaration.effect == Effect::External {
            return Ok(Decision::Misfit(misfit(GONE)));
        }
        if reasons.is_empty() {
            reasons = self.reasons(node, Some(&key), &preimage);
        }
        let pending = Box::new(Pending { parts, key, preimage, reasons });
        Ok(if may_run { Decision::Run(pending) } else { Decision::Held(pending) })
    }

    /// What a frozen node gave last, or why that cannot be used; nothing where it never gave anything.
    fn kept(&self, node: &Node) -> Option<&Result<NodeRun, String>> {
        node.spec.freeze.then(|| self.history.kept(self.plan, self.store, self.request.limit, node.id())).flatten()
    }

    /// Is all that a node gave still there?
    fn is_whole(&self, last: &NodeRun, look: Look) -> bool {
        let read = |output: &OutputRecord| match look {
            Look::Closely => matches!(self.store.intact(&output.id), Ok(Ok(()))),
            Look::There | Look::Here => true,
        };
        last.outputs.values().all(|output| self.store.check_output(output).is_ok() && read(output))
    }

    fn look_up(
        &self,
        node: &Node,
        parts: &Parts,
        key: &NodeKey,
        may_run: bool,
        look: Look,
    ) -> Result<Lookup, StoreError> {
        let retry = if may_run { self.request.retry } else { Retry::Nothing };
        let found = look_up(self.store, node, parts, key, retry);
        let Lookup::Hit(result) = &found else { return Ok(found) };
        for (port, output) in &result.outputs {
            let handed_over = matches!(node.outputs.get(port), Some(PortType::Tree(_)));
            let state = match look {
                Look::Closely => self.store.intact(&output.id)?,
                // What is written outside at once is compared before.
                Look::Here if handed_over && !node.operator.declaration.destinations().is_empty() => {
                    self.store.intact_once(&output.id)?
                }
                Look::Here if handed_over => self.store.fetch(&output.id)?,
                Look::Here | Look::There => Ok(()),
            };
            if let Err(damage) = state {
                return Ok(Lookup::Miss(vec![damage_reason(port, damage)]));
            }
        }
        Ok(found)
    }

    /// What is known of a node whose inputs are not all known: what it waits for, and what has changed already.
    fn waits(&self, node: &Node, known: &Known, sources: &SourceDigests) -> Decision {
        let unknown = || node.inputs.iter().filter(|input| !known.contains_key(&input.node));
        let mut on: Vec<String> = unknown().map(|input| self.plan.nodes()[input.node].id().to_owned()).collect();
        on.dedup();
        let mut filled = Known::new();
        for input in &node.inputs {
            let found = known.get(&input.node).and_then(|outputs| outputs.get(&input.output)).cloned();
            let output = found.unwrap_or_else(|| unknown_output(&input.port_type));
            filled.entry(input.node).or_default().insert(input.output.clone(), output);
        }
        let (directory, limit) = (self.request.directory, self.request.limit);
        let gathered = Parts::gather(node, &filled, sources, directory, limit).ok().flatten();
        let Some(parts) = gathered else { return Decision::Waits { on, preimage: Value::Null, reasons: Vec::new() } };
        let preimage = without_unknown(parts.key(node).1);
        let mut reasons = self.reasons(node, None, &preimage);
        // That it never ran says nothing yet: what it waits for decides.
        reasons.retain(|reason| !matches!(reason, Reason::NeverRan | Reason::Unfinished));
        Decision::Waits { on, preimage, reasons }
    }

    /// Why a node runs, seen from the last run in which it was recorded.
    fn reasons(&self, node: &Node, key: Option<&NodeKey>, preimage: &Value) -> Vec<Reason> {
        let last = self.history.last(self.plan, self.store, node.id());
        let Some(last) = last.filter(|last| last.key.is_some()) else { return vec![Reason::NeverRan] };
        if last.key.as_ref() == key {
            return vec![Reason::Unfinished];
        }
        match preimage_of(self.store, last) {
            Some(before) => diff_known(&before, preimage),
            None => vec![Reason::Unfinished],
        }
    }
}

/// Stands for the content of an input that is not known: no content has this digest.
fn unknown() -> Digest {
    Digest::from_bytes([0; 32])
}

fn unknown_output(port_type: &PortType) -> OutputRecord {
    OutputRecord { id: unknown().into(), artifact_type: port_type.into(), rows: 0, bytes: 0 }
}

/// A preimage in which unknown contents are `null`: no key can be made of it by mistake.
fn without_unknown(mut preimage: Value) -> Value {
    for input in preimage["inputs"].as_array_mut().into_iter().flatten() {
        if input[2].as_str() == Some(unknown().hex().as_str()) {
            input[2] = Value::Null;
        }
    }
    preimage
}

/// What differs between two preimages, of the second of which contents may be unknown.
#[must_use]
pub fn diff_known(before: &Value, now: &Value) -> Vec<Reason> {
    let mut now = now.clone();
    for (place, input) in now["inputs"].as_array_mut().into_iter().flatten().enumerate() {
        let same_port = before["inputs"][place][0] == input[0];
        if input[2].is_null() && same_port {
            input[2] = before["inputs"][place][2].clone();
        }
    }
    diff(before, &now)
}

/// What the key of a recorded node was made of, as far as the store says.
#[must_use]
pub fn preimage_of(store: &Store, node: &NodeRun) -> Option<Value> {
    let key = node.key.as_ref()?;
    let result = store.result(key).or_else(|| store.tombstone(key));
    result.map(|result| result.preimage).or_else(|| node.preimage.clone())
}

/// Why a frozen node's result cannot be used.
const GONE: &str = "what it gave last is damaged in the store or gone from it";

fn misfit(why: &str) -> OperatorError {
    let help = "run it once without `freeze: true` to compute it anew";
    OperatorError::pipeline(format!("the node is frozen and does not run: {why}")).with_help(help)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_that_are_not_known_yet_are_no_difference() {
        let of = |size: u64, inputs: Value| {
            json!({
                "format": 1, "operator": "chunk", "version": 1, "params": {"size": size}, "inputs": inputs,
                "outputs": [], "sources": [], "seed": null,
            })
        };
        let before = of(6, json!([["documents", "document rows", "aa"], ["more", "document rows", "bb"]]));
        let waits = of(7, json!([["documents", "document rows", null], ["more", "document rows", "cc"]]));
        let reasons = diff_known(&before, &waits);
        assert_eq!(
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["param `size` changed from 6 to 7", "the content of input `more` changed",]
        );
        let rebound = of(6, json!([["documents", "document rows", null]]));
        assert_eq!(diff_known(&before, &rebound), [Reason::InputsRebound { port: "more".to_owned() }]);
    }
}
