//! Records of finished nodes: their outputs and everything that produced them. Column lineage: the input columns from
//! which a node's output columns derive.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endpoint::Usage;
use crate::fingerprint::{Digest, NodeKey};
use crate::node_id::NodeId;
use crate::operator::{Computed, Repeatability};
use crate::store::artifacts::artifact::{Artifact, ArtifactId, ArtifactType};

/// How an input column contributes. Names and meaning follow OpenLineage's column lineage facet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transformation {
    /// The value is copied.
    Identity,
    /// The value enters an expression.
    Transformation,
    /// Values of several rows are combined.
    Aggregation,
    /// Selects the branch of an expression.
    Conditional,
    /// Selects rows.
    Filter,
    /// Determines which rows are joined.
    Join,
    /// Determines which rows are grouped.
    GroupBy,
    /// Determines the order of rows.
    Sort,
    /// Determines rows or their order within a window.
    Window,
}

impl Transformation {
    /// Whether the column's value contributes, rather than only a decision.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Identity | Self::Transformation | Self::Aggregation)
    }
}

/// An input column and its contribution.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ColumnUse {
    /// The input port.
    pub port: String,
    /// The column's name.
    pub column: String,
    /// How it contributes.
    pub how: Transformation,
}

/// Sources of the columns of one output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnLineage {
    /// By output column.
    pub fields: BTreeMap<String, BTreeSet<ColumnUse>>,
    /// Columns that determine which rows exist and in which order.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rows: BTreeSet<ColumnUse>,
}

/// One output of a finished node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRecord {
    /// The artifact.
    pub id: ArtifactId,
    /// The artifact's type.
    #[serde(rename = "type")]
    pub artifact_type: ArtifactType,
    /// Number of rows.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl OutputRecord {
    /// Whether the record agrees with the artifact's description.
    pub fn fits(&self, artifact: &Artifact) -> bool {
        self.artifact_type == artifact.artifact_type && (self.rows, self.bytes) == (artifact.rows(), artifact.bytes())
    }
}

/// An external file that a node read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Name in the key.
    pub name: String,
    /// Absolute path at the time.
    pub path: String,
    /// Digest of the content, as hex.
    pub content: String,
}

/// Where and how a node ran. None of it is part of the key; it helps to find the sources and to run the node again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The node's id in the pipeline.
    pub node: NodeId,
    /// The pipeline's name.
    pub pipeline: String,
    /// All params, including those that change no bytes (secrets are references).
    pub params: Value,
    /// Base folder of relative paths.
    pub directory: String,
    /// Local files that it read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceFile>,
    /// How repeatable its bytes are, and what computed them; missing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
}

/// A finished node. Written once, before the node is reported as done; never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeResult {
    /// The node's key.
    pub key: NodeKey,
    /// The preimage of the key.
    pub preimage: Value,
    /// Where and how it ran; missing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Outputs by port, including `rejects`.
    pub outputs: IndexMap<String, OutputRecord>,
    /// Metrics recorded by the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// Human-readable summary.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Rows dropped by `on_error: drop`. Such a result is not reused in any other case.
    #[serde(default)]
    pub dropped: u64,
    /// External calls, retries included.
    #[serde(default)]
    pub calls: u64,
    /// Those of them that asked no model: of tools, functions and rerankers.
    #[serde(default, skip_serializing_if = "crate::endpoint::is_zero")]
    pub service_calls: u64,
    /// Paid prompt tokens.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Paid completion tokens.
    #[serde(default)]
    pub completion_tokens: u64,
    /// Cost in billionths of the currency, at the prices from the params.
    #[serde(default)]
    pub cost_nanos: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Unix time (seconds) of completion.
    pub finished: f64,
    /// The run that produced it.
    pub run: String,
    /// Version of searchmill.
    pub searchmill: String,
    /// Column lineage of the outputs, if the node is a relational plan.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, ColumnLineage>,
    /// Memo of the rows of an external node or of the blocks of a `Map` node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Digest>,
    /// Memo of the answers to its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Digest>,
    /// Memos of what it observed of services beside its endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<Digest>,
    /// Rows among the rejects that were never asked, because a budget was used up.
    #[serde(default, skip_serializing_if = "crate::endpoint::is_zero")]
    pub unasked: u64,
    /// Stamp from which rows and answers counted; missing if all counted. See [`NodeResult::since`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
}

impl NodeResult {
    /// Returns the memos that it used: of its rows or blocks, of its calls, and of its observations.
    pub fn memos(&self) -> impl Iterator<Item = Digest> {
        self.memo.into_iter().chain(self.asked).chain(self.observed.iter().copied())
    }

    /// Returns the stamp from which rows and answers counted (`--force`).
    pub fn since(&self) -> u64 {
        self.floor.unwrap_or_default()
    }

    /// Returns what was paid for it.
    pub fn usage(&self) -> Usage {
        Usage {
            calls: self.calls,
            service_calls: self.service_calls,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cost_nanos: self.cost_nanos,
        }
    }

    /// Whether this result stays rather than another one of the same key: one whose rows were all asked before one that a
    /// budget cut short; of two that were cut short, the one with more rows; of two others, the one that lost fewer.
    pub fn is_better_than(&self, other: &Self) -> bool {
        match (self.unasked, other.unasked) {
            (0, 0) => self.rejects() + self.dropped < other.rejects() + other.dropped,
            (0, _) => true,
            (_, 0) => false,
            _ => self.rows() > other.rows(),
        }
    }

    /// Returns the number of rows of all outputs but the rejects.
    pub(crate) fn rows(&self) -> u64 {
        self.outputs.iter().filter(|(port, _)| *port != "rejects").map(|(_, output)| output.rows).sum()
    }

    /// Whether this machine's processor gives the same bytes again, for nothing.
    pub fn is_made_again_here(&self) -> bool {
        let Some(computed) = self.origin.as_ref().and_then(|origin| origin.computed.as_ref()) else { return false };
        self.calls == 0 && computed.repeats > Repeatability::Device && computed.on_this_cpu().is_ok()
    }

    /// Returns the number of rejected rows.
    pub fn rejects(&self) -> u64 {
        self.outputs.get("rejects").map_or(0, |output| output.rows)
    }
}
