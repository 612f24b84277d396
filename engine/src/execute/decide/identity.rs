//! The identity of a planned node whose input contents are known.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value;

use crate::endpoint::EndpointUse;
use crate::fingerprint::{
    Beside, Digest, InputIdentity, NodeIdentity, NodeKey, OutputIdentity, SeenSources, SourceDigests, SourceIdentity,
    SourceProblem, base_on, calls_base,
};
use crate::operator::{Effect, PortType, Repeatability, processor};
use crate::plan::{Node, NodeIndex};
use crate::store::{OutputRecord, SourceFile};

/// Outputs of completed nodes, by index in the plan.
pub type Known = BTreeMap<NodeIndex, IndexMap<String, OutputRecord>>;

/// Returns the key that a run would give the node, and its preimage; `None` while an input is unknown. For tools and
/// tests: all keys come from this code.
///
/// # Errors
/// Fails if a source cannot be read.
pub fn node_key(
    node: &Node,
    known: &Known,
    sources: &SourceDigests,
    directory: &Path,
) -> Result<Option<(NodeKey, Value)>, SourceProblem> {
    Ok(Parts::gather(node, known, sources, directory, None)?.map(|parts| parts.key(node)))
}

/// The parts of a node's key.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) inputs: Vec<InputIdentity>,
    outputs: Vec<OutputIdentity>,
    sources: Vec<SourceIdentity>,
    /// The sources as the key saw them.
    pub(crate) seen: Arc<SeenSources>,
    params: Value,
}

impl Parts {
    /// Gathers the parts; `None` while an input is unknown.
    pub(crate) fn gather(
        node: &Node,
        known: &Known,
        sources: &SourceDigests,
        directory: &Path,
        limit: Option<u64>,
    ) -> Result<Option<Self>, SourceProblem> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            let Some(record) = known.get(&input.node).and_then(|outputs| outputs.get(&input.output)) else {
                return Ok(None);
            };
            let artifact_type = input.port_type.to_string();
            inputs.push(InputIdentity { port: input.port.clone(), artifact_type, digest: record.id.digest() });
        }
        let named = node.operator.declaration.sources(directory);
        let (mut found, seen) = sources.identify(&named, directory)?;
        let seen = Arc::new(SeenSources::new(named, seen, directory));
        // `--limit` shortens what sources produce, so it is part of their identity.
        if let Some(rows) = limit {
            found.push(SourceIdentity { name: "--limit".to_owned(), content: rows.to_string(), place: 0 });
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for (port, port_type) in &node.outputs {
            let kind = match port_type {
                PortType::Rows(kind) => format!("{kind} v{}", kind.version()),
                PortType::Tree(kind) => kind.name().to_owned(),
            };
            outputs.push(OutputIdentity { port: port.clone(), kind });
        }
        Ok(Some(Self { inputs, outputs, sources: found, seen, params: node.identity_params.clone() }))
    }

    /// Returns the digest shared by all rows of the row input; it names the memo folder.
    pub(crate) fn row_base(&self, node: &Node) -> Digest {
        let side = self.side_inputs(node.main_port.as_deref());
        on_its_processor(node, NodeIdentity { params: &node.row_params, ..self.identity(node, &side) }.key().0.0)
    }

    /// Returns the digest shared by all parts of the row input; it excludes that input.
    pub(crate) fn block_base(&self, node: &Node) -> Digest {
        let side = self.side_inputs(node.main_port.as_deref());
        on_its_processor(node, self.identity(node, &side).key().0.0)
    }

    fn identity<'a>(&'a self, node: &'a Node, inputs: &'a [InputIdentity]) -> NodeIdentity<'a> {
        NodeIdentity {
            operator: node.entry.name,
            version: node.version(),
            params: &self.params,
            inputs,
            outputs: &self.outputs,
            sources: &self.sources,
            seed: (node.operator.declaration.effect != Effect::Pure).then_some(node.spec.seed),
            services: &node.services,
        }
    }

    /// Returns the base of the calls to the node's endpoint.
    pub(crate) fn calls_base(&self, node: &Node, endpoint: &EndpointUse, is_observed: bool) -> Digest {
        let beside = Beside { services: &node.services, inputs: &self.inputs, sources: &self.sources };
        calls_base(endpoint, &beside, is_observed)
    }

    /// Returns the local files behind the sources.
    pub(crate) fn files(&self) -> Vec<SourceFile> {
        let mut files = Vec::new();
        for file in self.seen.seen().iter().flat_map(|source| &source.files) {
            let Some(digest) = file.digest else { continue };
            let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
            let (name, path) = (file.name.clone(), path.display().to_string());
            files.push(SourceFile { name, path, content: digest.hex() });
        }
        files
    }

    /// Returns the node's key and its preimage.
    pub(crate) fn key(&self, node: &Node) -> (NodeKey, Value) {
        self.identity(node, &self.inputs).key()
    }

    /// Returns the inputs at all ports except `main_port`.
    fn side_inputs(&self, main_port: Option<&str>) -> Vec<InputIdentity> {
        self.inputs.iter().filter(|input| Some(input.port.as_str()) != main_port).cloned().collect()
    }
}

/// Separates rows by processor and GPU: a result that mixed them could not be reproduced anywhere.
fn on_its_processor(node: &Node, base: Digest) -> Digest {
    if node.operator.declaration.repeatability != Repeatability::Processor {
        return base;
    }
    let resources = &node.spec.resources;
    let device = match (resources.gpus > 0, resources.cpu_fallback) {
        (false, _) => processor(),
        (true, true) => format!("GPU or {}", processor()),
        (true, false) => "GPU".to_owned(),
    };
    base_on(&base, &device)
}
