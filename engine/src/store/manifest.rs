//! What is known about a finished node: its outputs and all that made them.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::artifact::{Artifact, ArtifactId, ArtifactType};
use super::columns::ColumnLineage;
use crate::fingerprint::{Digest, NodeKey};
use crate::operator::{Computed, Usage};

/// One output of a finished node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRecord {
    /// The artifact.
    pub id: ArtifactId,
    /// Its type.
    #[serde(rename = "type")]
    pub artifact_type: ArtifactType,
    /// Rows in it.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl OutputRecord {
    /// Does it say of its artifact what the artifact's description says?
    #[must_use]
    pub fn fits(&self, artifact: &Artifact) -> bool {
        self.artifact_type == artifact.artifact_type && (self.rows, self.bytes) == (artifact.rows(), artifact.bytes())
    }
}

/// A file outside the store that a node read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its name in the key.
    pub name: String,
    /// Where it lay: an absolute path.
    pub path: String,
    /// Digest of its content, as hex.
    pub content: String,
}

/// Where and how a node ran: nothing of it is in its key, all of it helps to find its sources and to run it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The node's id in the pipeline.
    pub node: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// All params, with those that change no bytes (secrets are references).
    pub params: Value,
    /// Where relative paths started.
    pub directory: String,
    /// Local files that it read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceFile>,
    /// How far its bytes can be computed again, and what computed them; missing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
}

/// A finished node. Written once, before the node is reported as done; never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeResult {
    /// The node's key.
    pub key: NodeKey,
    /// What the key was made of.
    pub preimage: Value,
    /// Where and how it ran; missing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Outputs by port, `rejects` included.
    pub outputs: IndexMap<String, OutputRecord>,
    /// Figures that the operator recorded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// Text for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Rows that failed and were passed over by `on_error: drop`; nothing else may reuse the result.
    #[serde(default)]
    pub dropped: u64,
    /// Calls to the outside, retries included.
    #[serde(default)]
    pub calls: u64,
    /// Prompt tokens paid.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Completion tokens paid.
    #[serde(default)]
    pub completion_tokens: u64,
    /// Billionths of the currency paid, at the prices that the params tell.
    #[serde(default)]
    pub cost_nanos: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Unix time (seconds) when it was finished.
    pub finished: f64,
    /// The run that made it.
    pub run: String,
    /// The program's version.
    pub searchmill: String,
    /// What the columns of the outputs come from, where the node is a relational plan.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, ColumnLineage>,
    /// Where the rows of an external node, or the blocks of a `Map` node, are remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Digest>,
    /// Where the answers to its calls are remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Digest>,
    /// From when on rows and answers counted for it; missing where all of them did. See [`NodeResult::since`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
}

impl NodeResult {
    /// The memos that it came from: its rows' or blocks', its calls'.
    pub fn memos(&self) -> impl Iterator<Item = Digest> {
        self.memo.into_iter().chain(self.asked)
    }

    /// Rows and answers with an earlier stamp did not count for it (`--force`).
    #[must_use]
    pub fn since(&self) -> u64 {
        self.floor.unwrap_or_default()
    }

    /// What was paid for it.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            calls: self.calls,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cost_nanos: self.cost_nanos,
        }
    }

    /// Rows that failed.
    #[must_use]
    pub fn rejects(&self) -> u64 {
        self.outputs.get("rejects").map_or(0, |output| output.rows)
    }
}
