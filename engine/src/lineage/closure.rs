//! Everything behind an artifact: the results that made it, their inputs, the results that made those, to the sources.

use std::collections::{BTreeMap, BTreeSet};

use super::catalog::{Catalog, Collected, Port};
use crate::fingerprint::{NodeKey, Preimage};
use crate::store::{ArtifactId, NodeResult};

/// One result of a closure.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its key.
    pub key: NodeKey,
    /// What its node is called, as far as the ledger knows.
    pub node: Option<String>,
    /// The record. Of a damaged one, what it claims.
    pub result: NodeResult,
    /// Is the record damaged?
    pub damaged: bool,
    /// Was it collected? Then its files are gone, unless other results have them too.
    pub collected: Option<Collected>,
    /// What its key says of it.
    pub preimage: Preimage,
    /// Its inputs in port order.
    pub inputs: Vec<StepInput>,
}

/// One input of a step.
#[derive(Clone, Debug)]
pub struct StepInput {
    /// The port.
    pub port: String,
    /// Type of the artifact, as the key has it (`chunk rows`, `index`).
    pub artifact_type: String,
    /// The artifact.
    pub id: ArtifactId,
    /// Who made it: a step of the closure and its output port. `None` when no record in the store says so.
    pub maker: Option<Port>,
}

/// Results in an order in which each stands after all it needs.
#[derive(Clone, Debug, Default)]
pub struct Closure {
    /// The results, sources first.
    pub steps: Vec<Step>,
}

impl Closure {
    /// Everything behind these results, themselves included. Where equal bytes were made in several ways, a result of
    /// `preferred` (the keys of a run) is taken.
    #[must_use]
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
                pending.push(key);
                let makers = step.inputs.iter().rev().filter_map(|input| Some(input.maker.as_ref()?.key));
                pending.extend(makers.filter(|maker| !seen.contains(maker)));
                ready.insert(key, step);
            }
        }
        closure
    }

    /// The step of a key.
    #[must_use]
    pub fn step(&self, key: &NodeKey) -> Option<&Step> {
        self.steps.iter().find(|step| step.key == *key)
    }

    /// Every artifact in it, made or used, in the order of the steps, each once.
    #[must_use]
    pub fn artifacts(&self) -> Vec<ArtifactId> {
        let mut seen = BTreeSet::new();
        let of_step = |step: &'_ Step| {
            let inputs = step.inputs.iter().map(|input| input.id);
            inputs.chain(step.result.outputs.values().map(|output| output.id)).collect::<Vec<_>>()
        };
        self.steps.iter().flat_map(of_step).filter(|id| seen.insert(*id)).collect()
    }

    /// Keys of all results in it.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<NodeKey> {
        self.steps.iter().map(|step| step.key).collect()
    }
}

fn step(catalog: &Catalog, key: NodeKey, preferred: &BTreeSet<NodeKey>) -> Option<Step> {
    let result = catalog.claim(&key)?.clone();
    let preimage = Preimage::read(&result.preimage);
    let input = |input: &crate::fingerprint::InputIdentity| {
        let id = ArtifactId::from(input.digest);
        StepInput {
            port: input.port.clone(),
            artifact_type: input.artifact_type.clone(),
            id,
            maker: catalog.maker(&id, preferred, Some(&result)).cloned(),
        }
    };
    let inputs = preimage.inputs.iter().map(input).collect();
    let (node, damaged) = (catalog.node(&key).map(str::to_owned), catalog.is_damaged(&key));
    let collected = catalog.collected(&key).cloned();
    Some(Step { key, node, result, damaged, collected, preimage, inputs })
}

impl Step {
    /// What to call it: the node's name, else the operator's.
    #[must_use]
    pub fn name(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.preimage.operator)
    }
}
