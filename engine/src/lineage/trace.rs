//! Traces artifacts: to everything upstream of one, and to everything derived from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use serde_json::Value;

use super::catalog::{Catalog, Collected};
use super::closure::{Closure, Step};
use super::target::Target;
use crate::fingerprint::{Digest, NodeKey, Preimage};
use crate::node_id::NodeId;
use crate::store::{ArtifactId, ArtifactType, NodeRun, Store};

/// Results with their inputs and outputs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Graph {
    /// The results in topological order.
    pub steps: Vec<GraphStep>,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub struct GraphStep {
    /// Its key.
    pub key: NodeKey,
    /// The node's name.
    pub node: NodeId,
    /// Operator.
    pub operator: String,
    /// Version of its code.
    pub version: u64,
    /// Version of the program.
    pub searchmill: String,
    /// Params that determine its bytes.
    pub params: Value,
    /// Seed, if one was used.
    pub seed: Option<u64>,
    /// The run that produced it.
    pub run: String,
    /// Unix time (seconds) of completion.
    pub finished: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// External calls.
    pub calls: u64,
    /// Paid prompt and completion tokens.
    pub tokens: [u64; 2],
    /// Whether its record is damaged.
    pub damaged: bool,
    /// Set if it was collected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<Collected>,
    /// External files and identities.
    pub sources: Vec<GraphSource>,
    /// Its inputs.
    pub inputs: Vec<GraphInput>,
    /// Its outputs.
    pub outputs: Vec<GraphOutput>,
}

/// An external file or identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphSource {
    /// Name in the key.
    pub name: String,
    /// Digest of a local file, else what identifies it.
    pub content: String,
    /// Path of a local file at the time.
    pub path: Option<String>,
}

/// An input artifact.
#[derive(Clone, Debug, Serialize)]
pub struct GraphInput {
    /// The port.
    pub port: String,
    /// Type.
    #[serde(rename = "type")]
    pub artifact_type: String,
    /// The artifact.
    pub artifact: ArtifactId,
    /// Key of the result that produced it; `None` if no record names it.
    pub made_by: Option<NodeKey>,
    /// Output port of that result.
    pub made_at: Option<String>,
}

/// An output artifact.
#[derive(Clone, Debug, Serialize)]
pub struct GraphOutput {
    /// The port.
    pub port: String,
    /// Type.
    #[serde(rename = "type")]
    pub artifact_type: String,
    /// The artifact.
    pub artifact: ArtifactId,
    /// Number of rows.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Whether it was requested.
    pub asked: bool,
    /// Whether its files were released.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// What a target refers to: results and artifacts.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// Results.
    pub keys: Vec<NodeKey>,
    /// Artifacts.
    pub artifacts: BTreeSet<ArtifactId>,
    /// Keys of the run that is meant. Among several makers of equal bytes, these are preferred.
    pub preferred: BTreeSet<NodeKey>,
    /// The run that is meant, if one is.
    pub run: Option<String>,
}

impl Roots {
    /// Returns the results and artifacts of a target. For a source: the results that used it.
    pub fn of(store: &Store, catalog: &Catalog, target: &Target) -> Self {
        match target {
            Target::Run(run) => {
                let nodes = store.run_nodes(run);
                let artifacts = nodes.iter().flat_map(|node| node.outputs.values()).map(|output| output.id);
                let artifacts = artifacts.collect();
                Self { keys: done(&nodes), artifacts, preferred: done(&nodes), run: Some(run.clone()) }
            }
            Target::Node { run, node, port } => {
                let outputs = node.outputs.iter().filter(|(name, _)| port.as_ref().is_none_or(|port| port == *name));
                let artifacts = outputs.map(|(_, output)| output.id).collect();
                let preferred = done(&store.run_nodes(run));
                Self { keys: node.key.into_iter().collect(), artifacts, preferred, run: Some(run.clone()) }
            }
            Target::Artifact(id) | Target::Delivered { id, .. } => {
                let maker = catalog.maker(id, &BTreeSet::new(), None).map(|port| port.key);
                let (keys, preferred) = (maker.into_iter().collect(), maker.into_iter().collect());
                Self { keys, artifacts: BTreeSet::from([*id]), preferred, run: None }
            }
            Target::Result(key) => {
                let outputs = catalog.claim(key).into_iter().flat_map(|result| result.outputs.values());
                Self { keys: vec![*key], artifacts: outputs.map(|output| output.id).collect(), ..Self::default() }
            }
            Target::Source { content, .. } => {
                let readers = catalog.results().filter(|result| {
                    Preimage::read(&result.preimage).sources.iter().any(|source| source.content == *content)
                });
                Self { keys: readers.map(|result| result.key).collect(), ..Self::default() }
            }
        }
    }

    /// Adds those of another target of the same run.
    pub fn add(&mut self, more: Self) {
        self.keys.extend(more.keys);
        self.artifacts.extend(more.artifacts);
    }
}

/// Returns the keys of finished nodes: only such a node has a result.
fn done<Keys: FromIterator<NodeKey>>(nodes: &[NodeRun]) -> Keys {
    nodes.iter().filter(|node| node.outcome.has_result()).filter_map(|node| node.key).collect()
}

/// Returns the closure upstream of the roots, themselves included.
pub fn upstream(catalog: &Catalog, roots: &Roots) -> Closure {
    Closure::of(catalog, &roots.keys, &roots.preferred)
}

/// Returns everything derived from the roots' artifacts, the roots included. If the roots are results only, all their
/// outputs count. The maker of an input may be outside of the closure.
pub fn downstream(catalog: &Catalog, roots: &Roots) -> Closure {
    let mut pending: VecDeque<ArtifactId> = roots.artifacts.iter().copied().collect();
    if pending.is_empty() {
        for result in roots.keys.iter().filter_map(|key| catalog.result(key)) {
            pending.extend(result.outputs.values().map(|output| output.id));
        }
    }
    let mut seen: BTreeSet<ArtifactId> = pending.iter().copied().collect();
    let mut keys: BTreeSet<NodeKey> = roots.keys.iter().copied().collect();
    while let Some(artifact) = pending.pop_front() {
        // Nothing derives from an empty table: all empty tables are equal.
        if is_empty(catalog, &artifact) {
            continue;
        }
        for user in catalog.users(&artifact) {
            if keys.insert(user.key)
                && let Some(result) = catalog.result(&user.key)
            {
                pending.extend(result.outputs.values().map(|output| output.id).filter(|id| seen.insert(*id)));
            }
        }
    }
    let all: Vec<NodeKey> = keys.iter().copied().collect();
    let mut closure = Closure::of(catalog, &all, &keys);
    // The other inputs of what derives from the roots do not derive from them.
    closure.steps.retain(|step| keys.contains(&step.key));
    closure
}

fn is_empty(catalog: &Catalog, id: &ArtifactId) -> bool {
    let port = catalog.makers(id).first();
    let output = port.and_then(|port| catalog.result(&port.key)?.outputs.get(&port.port));
    output.is_some_and(|output| output.rows == 0 && matches!(output.artifact_type, ArtifactType::Rows { .. }))
}

/// Returns a closure as data for display and tools.
pub fn graph(store: &Store, closure: &Closure, asked: &BTreeSet<ArtifactId>) -> Graph {
    Graph { steps: closure.steps.iter().map(|step| graph_step(store, step, asked)).collect() }
}

fn graph_step(store: &Store, step: &Step, asked: &BTreeSet<ArtifactId>) -> GraphStep {
    let (result, preimage) = (&step.result, &step.preimage);
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for input in &step.inputs {
        inputs.push(GraphInput {
            port: input.port.clone(),
            artifact_type: input.artifact_type.clone(),
            artifact: input.id,
            made_by: input.maker.as_ref().map(|maker| maker.key),
            made_at: input.maker.as_ref().map(|maker| maker.port.clone()),
        });
    }
    for (port, output) in &result.outputs {
        outputs.push(GraphOutput {
            port: port.clone(),
            artifact_type: match &output.artifact_type {
                ArtifactType::Rows { kind, .. } => format!("{kind} rows"),
                ArtifactType::Tree { kind } => kind.clone(),
            },
            artifact: output.id,
            rows: output.rows,
            bytes: output.bytes,
            asked: asked.contains(&output.id),
            released: store.release_of(&output.id).is_some(),
        });
    }
    GraphStep {
        key: step.key,
        node: step.name().into(),
        operator: preimage.operator.clone(),
        version: preimage.version,
        searchmill: result.searchmill.clone(),
        params: preimage.params.clone(),
        seed: preimage.seed,
        run: result.run.clone(),
        finished: result.finished,
        seconds: result.seconds,
        calls: result.calls,
        tokens: [result.prompt_tokens, result.completion_tokens],
        damaged: step.damaged,
        collected: step.collected.clone(),
        sources: sources(step),
        inputs,
        outputs,
    }
}

/// Returns the sources of a step with their paths.
pub fn sources(step: &Step) -> Vec<GraphSource> {
    // Files of one name and content are in one order in both lists.
    let mut by_name: BTreeMap<(&str, &str), VecDeque<&str>> = BTreeMap::new();
    for file in step.result.origin.iter().flat_map(|origin| &origin.sources) {
        by_name.entry((&file.name, &file.content)).or_default().push_back(&file.path);
    }
    let mut found = Vec::with_capacity(step.preimage.sources.len());
    for source in &step.preimage.sources {
        let path = by_name.get_mut(&(source.name.as_str(), source.content.as_str())).and_then(VecDeque::pop_front);
        let (name, content) = (source.name.clone(), source.content.clone());
        found.push(GraphSource { name, content, path: path.map(str::to_owned) });
    }
    found
}

impl GraphSource {
    /// Whether it is a local file, identified by its content digest.
    pub fn is_file(&self) -> bool {
        Digest::parse(&self.content).is_some()
    }
}
