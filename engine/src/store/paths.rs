//! The places of artifacts, records and segments in a store: local folders and objects have the same names.

use super::artifacts::artifact::ArtifactId;
use crate::fingerprint::{Digest, NodeKey};

/// Returns the path of an artifact in a store, with `/`.
pub(crate) fn artifact_place(id: &ArtifactId) -> String {
    sharded("artifacts", &id.to_string())
}

/// Returns the path of an artifact's description in a store.
pub(crate) fn description_place(id: &ArtifactId) -> String {
    format!("{}.json", artifact_place(id))
}

/// Returns the path of a key's record in a store, in `results` or `collected`.
pub(crate) fn record_place(key: &NodeKey, folder: &str) -> String {
    format!("{}.json", sharded(folder, &key.to_string()))
}

/// Returns the path of the note of an artifact's release in a store.
pub(crate) fn release_place(id: &ArtifactId) -> String {
    format!("{}.json", sharded("released", &id.to_string()))
}

/// Returns the key whose record has that file name.
pub(super) fn recorded_key(name: &str) -> Option<NodeKey> {
    Digest::parse(name.strip_suffix(".json")?).map(NodeKey)
}

/// Returns the path of a memo segment that is named by its content.
pub(crate) fn memo_place(base: &Digest, segment: &Digest) -> String {
    format!("{}/{segment}.rows", sharded("memo", &base.hex()))
}

/// Returns the path of an object below a subfolder of the first two digits of its name.
pub(super) fn sharded(folder: &str, hex: &str) -> String {
    format!("{folder}/{}/{hex}", &hex[..2])
}
