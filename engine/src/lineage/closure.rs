//! The closure of an artifact: all upstream results with their inputs, back to the sources.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexSet;
use searchmill_schemas::RecordKind;

use super::catalog::{Catalog, Collected, Port};
use crate::fingerprint::{NodeKey, Preimage};
use crate::store::{ArtifactId, NodeResult};

/// One result of a closure.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its key.
    pub key: NodeKey,
    /// The node's name, if the ledger knows it.
    pub node: Option<String>,
    /// The record; if it is damaged, its readable content.
    pub result: NodeResult,
    /// Whether the record is damaged.
    pub damaged: bool,
    /// Set if the result was collected. Its files are then missing unless other results share them.
    pub collected: Option<Collected>,
    /// The parsed preimage of its key.
    pub preimage: Preimage,
    /// Its inputs in port order.
    pub inputs: Vec<StepInput>,
}

/// One input of a step.
#[derive(Clone, Debug)]
pub struct StepInput {
    /// The port.
    pub port: String,
    /// Type of the artifact in the key (`chunk rows`, `index`).
    pub artifact_type: String,
    /// The artifact.
    pub id: ArtifactId,
    /// The step and output port that produced it; `None` if no record in the store names them.
    pub maker: Option<Port>,
}

/// Results in topological order.
#[derive(Clone, Debug, Default)]
pub struct Closure {
    /// The results, sources first.
    pub steps: Vec<Step>,
    /// Operators that give each row a new id, by the input that it comes from.
    pub(crate) gatherers: BTreeSet<String>,
}

impl Closure {
    /// Returns the closure of these results, themselves included. If equal bytes have several makers, a result of
    /// `preferred` (the keys of a run) is chosen.
    pub fn of(catalog: &Catalog, roots: &[NodeKey], preferred: &BTreeSet<NodeKey>) -> Self {
        let mut closure = Self::default();
        let mut seen = BTreeSet::new();
        let mut ready: BTreeMap<NodeKey, Step> = BTreeMap::new();
        let mut pending: Vec<NodeKey> = roots.iter().rev().copied().collect();
        while let Some(key) = pending.pop() {
            if let Some(step) = ready.remove(&key) {
                closure.steps.push(step);
            } else if seen.insert(key)
                && let Some(step) = step(catalog, key, preferred)
            {
                // Once more after its inputs: a step comes after all that it derives from.
                pending.push(key);
                // The last of them is taken first: steps stand in the order of the inputs.
                for maker in step.inputs.iter().rev().filter_map(|input| input.maker.as_ref()) {
                    if !seen.contains(&maker.key) {
                        pending.push(maker.key);
                    }
                }
                ready.insert(key, step);
            }
        }
        closure
    }

    /// Whether a step gives each row of this kind a new id, by the input that it comes from. Then an equal id is another
    /// row's.
    pub(super) fn renames(&self, step: &Step, kind: RecordKind) -> bool {
        kind.id_column().is_some() && self.gatherers.contains(&step.preimage.operator)
    }

    /// Returns the step of a key.
    pub fn step(&self, key: &NodeKey) -> Option<&Step> {
        self.steps.iter().find(|step| step.key == *key)
    }

    /// Returns every artifact in it, produced or used, in the order of the steps, each once.
    pub fn artifacts(&self) -> Vec<ArtifactId> {
        let mut found = IndexSet::new();
        for step in &self.steps {
            found.extend(step.inputs.iter().map(|input| input.id));
            found.extend(step.result.outputs.values().map(|output| output.id));
        }
        found.into_iter().collect()
    }

    /// Returns the keys of all its results.
    pub fn keys(&self) -> BTreeSet<NodeKey> {
        self.steps.iter().map(|step| step.key).collect()
    }
}

fn step(catalog: &Catalog, key: NodeKey, preferred: &BTreeSet<NodeKey>) -> Option<Step> {
    let result = catalog.claim(&key)?.clone();
    let preimage = Preimage::read(&result.preimage);
    let mut inputs = Vec::with_capacity(preimage.inputs.len());
    for input in &preimage.inputs {
        let id = ArtifactId::from(input.digest);
        let maker = catalog.maker(&id, preferred, Some(&result)).cloned();
        inputs.push(StepInput { port: input.port.clone(), artifact_type: input.artifact_type.clone(), id, maker });
    }
    let (node, damaged) = (catalog.node(&key).map(str::to_owned), catalog.is_damaged(&key));
    let collected = catalog.collected(&key).cloned();
    Some(Step { key, node, result, damaged, collected, preimage, inputs })
}

impl Step {
    /// Returns the node's name, or else the operator's.
    pub fn name(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.preimage.operator)
    }
}
