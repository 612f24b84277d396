//! Artifacts: immutable tables and folders, identified by the digest of their content.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fingerprint::{Digest, encode, hash_bytes};
use crate::operator::{PortType, TreeKind};
use searchmill_schemas::RecordKind;

/// The digest of an artifact's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArtifactId(Digest);

impl ArtifactId {
    /// Returns the digest.
    pub fn digest(&self) -> Digest {
        self.0
    }

    /// Parses 64 hexadecimal digits.
    pub fn parse(hex: &str) -> Option<Self> {
        Digest::parse(hex).map(Self)
    }
}

impl From<Digest> for ArtifactId {
    fn from(digest: Digest) -> Self {
        Self(digest)
    }
}

impl std::fmt::Display for ArtifactId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The type of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactType {
    /// A table, with the record kind and the version of its schema.
    Rows {
        /// Record kind.
        kind: String,
        /// Schema version.
        version: u32,
    },
    /// A folder.
    Tree {
        /// `index`, `model`, `report`, `files`.
        kind: String,
    },
}

impl ArtifactType {
    /// Returns the port type, or `None` if this build does not know the kind.
    pub fn port_type(&self) -> Option<PortType> {
        match self {
            Self::Rows { kind, .. } => RecordKind::from_name(kind).map(PortType::Rows),
            Self::Tree { kind } => TreeKind::ALL.into_iter().find(|tree| tree.name() == kind).map(PortType::Tree),
        }
    }
}

impl From<&PortType> for ArtifactType {
    fn from(port: &PortType) -> Self {
        match port {
            PortType::Rows(kind) => Self::Rows { kind: kind.name().to_owned(), version: kind.version() },
            PortType::Tree(kind) => Self::Tree { kind: kind.name().to_owned() },
        }
    }
}

/// One file of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Path relative to the artifact's folder, with `/`.
    pub name: String,
    /// BLAKE3 digest of the content.
    pub digest: Digest,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of rows (0 for files of a folder).
    pub rows: u64,
}

/// Description of an artifact, stored beside its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Table or folder.
    #[serde(rename = "type")]
    pub artifact_type: ArtifactType,
    /// The files, in order.
    pub parts: Vec<Part>,
}

impl Artifact {
    /// Returns the digest of the content: type and files, nothing else.
    pub fn id(&self) -> ArtifactId {
        let kind = serde_json::to_value(&self.artifact_type).unwrap_or(Value::Null);
        let parts = self.parts.iter().map(|part| json!([part.name, part.digest.hex(), part.bytes, part.rows]));
        let parts: Vec<Value> = parts.collect();
        // The ids in all stores depend on these bytes.
        ArtifactId(hash_bytes(&encode(&json!(["artifact/1", kind, parts]))))
    }

    /// Returns the total number of rows.
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Returns the total number of bytes.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}
