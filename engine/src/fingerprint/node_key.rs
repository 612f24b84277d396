//! Node keys: what a node is, and nothing about where, when, or under which name it runs.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::canonical::encode;
use super::digest::{Digest, hash_bytes};

/// Version of the key's own form: bump when the preimage's shape changes.
pub const KEY_FORMAT: u32 = 1;

/// The key of a node: digest of its preimage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeKey(pub Digest);

impl std::fmt::Display for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One artifact at an input port.
#[derive(Clone, Debug)]
pub struct InputIdentity {
    /// The port.
    pub port: String,
    /// Type of the artifact (`chunk rows`, `index`).
    pub artifact_type: String,
    /// Content digest.
    pub digest: Digest,
}

/// One output port.
#[derive(Clone, Debug)]
pub struct OutputIdentity {
    /// The port.
    pub port: String,
    /// Kind and schema version.
    pub kind: String,
}

/// One file or identity outside the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// File name (no folder), or what the operator named.
    pub name: String,
    /// Content digest, as hex, or the identity's text.
    pub content: String,
    /// Which of the operator's sources it belongs to, from 0: a file that moves from one folder to another is a change.
    #[serde(default)]
    pub place: u64,
}

impl SourceIdentity {
    fn encoded(&self) -> Value {
        // The first source is left out: most nodes have no other.
        if self.place == 0 { json!([self.name, self.content]) } else { json!([self.name, self.content, self.place]) }
    }
}

/// All that makes a node's output what it is.
#[derive(Clone, Debug)]
pub struct NodeIdentity<'a> {
    /// Operator name.
    pub operator: &'a str,
    /// Operator version.
    pub version: u32,
    /// Params after defaults, execution-only ones left out.
    pub params: &'a Value,
    /// Inputs in port order.
    pub inputs: &'a [InputIdentity],
    /// Outputs in port order.
    pub outputs: &'a [OutputIdentity],
    /// Outside files in order.
    pub sources: &'a [SourceIdentity],
    /// Seed, for seeded operators.
    pub seed: Option<u64>,
}

impl NodeIdentity<'_> {
    /// The key and the preimage it was made from, a small named tree that `why` can compare.
    #[must_use]
    pub fn key(&self) -> (NodeKey, Value) {
        let preimage = self.preimage();
        (NodeKey(hash_bytes(&encode(&preimage))), preimage)
    }

    fn preimage(&self) -> Value {
        let input = |input: &InputIdentity| json!([input.port, input.artifact_type, input.digest.hex()]);
        json!({
            "format": KEY_FORMAT,
            "operator": self.operator,
            "version": self.version,
            "params": self.params,
            "inputs": self.inputs.iter().map(input).collect::<Vec<_>>(),
            "outputs": self.outputs.iter().map(|o| json!([o.port, o.kind])).collect::<Vec<_>>(),
            "sources": self.sources.iter().map(SourceIdentity::encoded).collect::<Vec<_>>(),
            "seed": self.seed,
        })
    }
}
