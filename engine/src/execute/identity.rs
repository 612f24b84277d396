//! The identity of a planned node, once the content of its inputs is known.

use std::collections::BTreeMap;
use std::path::Path;

use indexmap::IndexMap;
use serde_json::Value;

use crate::fingerprint::{
    Digest, InputIdentity, NodeIdentity, NodeKey, OutputIdentity, SourceDigests, SourceIdentity, SourceProblem,
};
use crate::operator::{Effect, PortType};
use crate::plan::Node;
use crate::store::{OutputRecord, SourceFile};

/// Outputs of the nodes that are done, by place in the plan.
pub(super) type Known = BTreeMap<usize, IndexMap<String, OutputRecord>>;

/// What a node's key is made of.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) inputs: Vec<InputIdentity>,
    outputs: Vec<OutputIdentity>,
    sources: Vec<SourceIdentity>,
    files: Vec<SourceFile>,
    params: Value,
}

impl Parts {
    /// Gathers the parts; `None` while an input is not known.
    pub(super) fn gather(
        node: &Node,
        known: &Known,
        sources: &mut SourceDigests,
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
        let (mut found, mut files) = (Vec::new(), Vec::new());
        for source in &node.sources {
            for located in sources.identify(source, directory, &remote)? {
                files.extend(located.path.as_deref().map(|path| source_file(&located.identity, path)));
                found.push(located.identity);
            }
        }
        // `--limit` shortens what sources give, so it is part of what they read.
        if let Some(rows) = limit.filter(|_| node.inputs.is_empty()) {
            found.push(SourceIdentity { name: "--limit".to_owned(), content: rows.to_string() });
        }
        let outputs = node.outputs.iter().map(|(port, port_type)| output_identity(port, port_type)).collect();
        Ok(Some(Self { inputs, outputs, sources: found, files, params: node.identity_params.clone() }))
    }

    /// What all rows of the row input have in common; names the memo's folder.
    pub(super) fn row_base(&self, node: &Node) -> Digest {
        let side = self.side_inputs(node.main_port.as_deref());
        NodeIdentity { params: &node.row_params, ..self.identity(node, &side) }.key().0.0
    }

    /// What all parts of the row input have in common; `inputs` leaves that input out.
    pub(super) fn block_base(&self, node: &Node) -> Digest {
        let side = self.side_inputs(node.main_port.as_deref());
        self.identity(node, &side).key().0.0
    }

    fn identity<'a>(&'a self, node: &Node, inputs: &'a [InputIdentity]) -> NodeIdentity<'a> {
        NodeIdentity {
            operator: node.entry.name,
            version: node.entry.version,
            params: &self.params,
            inputs,
            outputs: &self.outputs,
            sources: &self.sources,
            seed: (node.entry.effect != Effect::Pure).then_some(node.spec.seed),
        }
    }

    /// The local files behind the sources.
    pub(super) fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// The node's key and its preimage.
    pub(super) fn key(&self, node: &Node) -> (NodeKey, Value) {
        self.identity(node, &self.inputs).key()
    }

    /// Inputs other than the one at that port.
    pub(super) fn side_inputs(&self, main_port: Option<&str>) -> Vec<InputIdentity> {
        self.inputs.iter().filter(|input| Some(input.port.as_str()) != main_port).cloned().collect()
    }
}

fn source_file(identity: &SourceIdentity, path: &Path) -> SourceFile {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    SourceFile { name: identity.name.clone(), path: path.display().to_string(), content: identity.content.clone() }
}

fn output_identity(port: &str, port_type: &PortType) -> OutputIdentity {
    let kind = match port_type {
        PortType::Rows(kind) => format!("{kind} v{}", kind.version()),
        PortType::Tree(kind) => kind.name().to_owned(),
    };
    OutputIdentity { port: port.to_owned(), kind }
}

/// Remote files are identified by their address: a URL that changes its content must change its name (a revision, a
/// version), or the node must be told to run, to be read again.
#[expect(clippy::unnecessary_wraps, reason = "the signature that `SourceDigests::identify` takes")]
fn remote(url: &str) -> Result<SourceIdentity, SourceProblem> {
    Ok(SourceIdentity { name: url.to_owned(), content: url.to_owned() })
}
