//! Parses stored preimages.

use serde_json::Value;

use super::digest::Digest;
use super::node_key::{InputIdentity, SourceIdentity};

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
    use serde_json::json;

    use super::*;
    use crate::fingerprint::{NodeIdentity, NodeKey, hash_bytes};

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
