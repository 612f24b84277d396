//! Node keys: what a node computes. Where, when and under which name it runs is not part of its key. Stored preimages are
//! read here too.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::canonical::encode;
use super::digest::{Digest, hash_bytes};

/// Version of the key format: increase it when the shape of the preimage changes.
pub const KEY_FORMAT: u32 = 2;

/// The key of a node: the digest of its preimage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeKey(pub Digest);

impl NodeKey {
    /// Returns the key of a preimage.
    pub fn of(preimage: &Value) -> Self {
        Self(hash_bytes(&encode(preimage)))
    }
}

impl std::fmt::Display for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// An artifact at an input port.
#[derive(Clone, Debug)]
pub struct InputIdentity {
    /// The port.
    pub port: String,
    /// Type of the artifact (`chunk rows`, `index`).
    pub artifact_type: String,
    /// Content digest.
    pub digest: Digest,
}

/// An output port.
#[derive(Clone, Debug)]
pub struct OutputIdentity {
    /// The port.
    pub port: String,
    /// Kind and schema version.
    pub kind: String,
}

/// An external file or identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// File name (without folder), or the name chosen by the operator.
    pub name: String,
    /// Content digest as hex, or the identity's text.
    pub content: String,
    /// Index of the operator's source, from 0: moving a file between two sources is a change.
    #[serde(default)]
    pub place: u64,
}

impl SourceIdentity {
    fn encoded(&self) -> Value {
        // Index 0 is omitted, as most nodes have one source.
        if self.place == 0 { json!([self.name, self.content]) } else { json!([self.name, self.content, self.place]) }
    }
}

/// Everything that determines a node's output.
#[derive(Clone, Debug)]
pub struct NodeIdentity<'a> {
    /// Operator name.
    pub operator: &'a str,
    /// Operator version.
    pub version: u32,
    /// Params with defaults, without execution-only ones.
    pub params: &'a Value,
    /// Inputs in port order.
    pub inputs: &'a [InputIdentity],
    /// Outputs in port order.
    pub outputs: &'a [OutputIdentity],
    /// External files in order.
    pub sources: &'a [SourceIdentity],
    /// Seed, for seeded operators.
    pub seed: Option<u64>,
    /// Servers that run while the node runs, without their addresses; null if there are none.
    pub services: &'a Value,
}

impl NodeIdentity<'_> {
    /// Returns the key and its preimage, a small named tree that `why` compares.
    pub fn key(&self) -> (NodeKey, Value) {
        let inputs = self.inputs.iter().map(|input| json!([input.port, input.artifact_type, input.digest.hex()]));
        let mut preimage = json!({
            "format": KEY_FORMAT,
            "operator": self.operator,
            "version": self.version,
            "params": self.params,
            "inputs": inputs.collect::<Vec<_>>(),
            "outputs": self.outputs.iter().map(|o| json!([o.port, o.kind])).collect::<Vec<_>>(),
            "sources": self.sources.iter().map(SourceIdentity::encoded).collect::<Vec<_>>(),
            "seed": self.seed,
        });
        // Absent without services: nodes that have none keep the keys from before there were services.
        if !self.services.is_null() {
            preimage["services"] = self.services.clone();
        }
        (NodeKey::of(&preimage), preimage)
    }
}

/// Returns a text of a preimage; empty if it is missing.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The content of a preimage.
#[derive(Clone, Debug)]
pub struct Preimage {
    /// Operator name.
    pub operator: String,
    /// Operator version.
    pub version: u64,
    /// Params with defaults, without those that change no bytes.
    pub params: Value,
    /// Inputs in port order.
    pub inputs: Vec<InputIdentity>,
    /// External files in order.
    pub sources: Vec<SourceIdentity>,
    /// Seed, for seeded and external operators.
    pub seed: Option<u64>,
    /// Services; null if there are none.
    pub services: Value,
}

impl Preimage {
    /// Parses a stored preimage; missing parts are empty.
    pub fn read(value: &Value) -> Self {
        let mut inputs = Vec::new();
        for row in value["inputs"].as_array().into_iter().flatten() {
            let Some(digest) = row[2].as_str().and_then(Digest::parse) else { continue };
            inputs.push(InputIdentity { port: text(&row[0]), artifact_type: text(&row[1]), digest });
        }
        let mut sources = Vec::new();
        for row in value["sources"].as_array().into_iter().flatten() {
            let place = row[2].as_u64().unwrap_or_default();
            sources.push(SourceIdentity { name: text(&row[0]), content: text(&row[1]), place });
        }
        Self {
            operator: text(&value["operator"]),
            version: value["version"].as_u64().unwrap_or_default(),
            params: value["params"].clone(),
            inputs,
            sources,
            seed: value["seed"].as_u64(),
            services: value["services"].clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_into_a_key_can_be_read_back() {
        let inputs = [InputIdentity {
            port: "rows".to_owned(),
            artifact_type: "chunk rows".to_owned(),
            digest: hash_bytes(b"content"),
        }];
        let source = |place| SourceIdentity { name: "file".to_owned(), content: "0f".to_owned(), place };
        let sources = [source(0), source(2)];
        let (params, outputs, services) = (json!({"size": 3}), [], json!({"judge": {"serves": "model"}}));
        let identity = NodeIdentity {
            operator: "cut",
            version: 4,
            params: &params,
            inputs: &inputs,
            outputs: &outputs,
            sources: &sources,
            seed: Some(7),
            services: &services,
        };
        let (key, value) = identity.key();
        let read = Preimage::read(&value);
        assert_eq!((read.operator.as_str(), read.version, read.seed, &read.params), ("cut", 4, Some(7), &params));
        assert_eq!((read.inputs[0].port.as_str(), read.inputs[0].digest), ("rows", hash_bytes(b"content")));
        assert_eq!((&read.sources[..], &read.services), (&sources[..], &services));
        assert_eq!(NodeKey::of(&value), key);
        let stored: Value = serde_json::from_str(&value.to_string()).unwrap();
        assert_eq!(NodeKey::of(&stored), key, "what was stored gives the same key");
    }
}
