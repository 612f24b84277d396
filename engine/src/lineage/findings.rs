//! Findings of an audit, and what it did not check.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::fingerprint::NodeKey;
use crate::node_id::NodeId;
use crate::store::ArtifactId;

/// Outcome of a node that was not compared.
pub const NOT_CHECKED: &str = "not checked";

/// Whether a finding makes an audit fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something differs from its record.
    Difference,
    /// Worth knowing, but nothing recorded is wrong.
    Note,
}

/// A finding of an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether it makes the audit fail.
    pub severity: Severity,
    /// The check: `record`, `ledger`, `artifact`, `lineage`, `source`, `memo`, `replay`, `recheck`, `answers`.
    pub check: &'static str,
    /// The node.
    pub node: NodeId,
    /// Artifact, file, row or column, if any.
    pub place: Option<String>,
    /// The finding as text.
    pub message: String,
}

/// A node that was recomputed or derived again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCheck {
    /// The node.
    pub node: NodeId,
    /// `replay`, `recheck` or `answers`.
    pub check: &'static str,
    /// `same`, `differs` or `not checked`.
    pub outcome: &'static str,
    /// What was compared, or why nothing was.
    pub detail: String,
}

/// Something that was to be checked but was not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// What: a node, an artifact, a source.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// What an audit checked and found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Result records.
    pub records: u64,
    /// Artifacts.
    pub artifacts: u64,
    /// Files of the artifacts.
    pub files: u64,
    /// Bytes of these files, all of them read.
    pub bytes: u64,
    /// External files and identities.
    pub sources: u64,
    /// Number of local sources with the recorded content.
    pub sources_unchanged: u64,
    /// Nodes that were recomputed or derived again.
    pub nodes: Vec<NodeCheck>,
    /// What was to be checked but was not.
    pub unchecked: Vec<Unchecked>,
    /// The findings.
    pub findings: Vec<Finding>,
    /// Other things that were to be checked.
    #[serde(skip)]
    pub others: u64,
    /// Damaged artifacts.
    #[serde(skip)]
    pub damaged: BTreeSet<ArtifactId>,
    /// Released artifacts, with the name under which they were passed over.
    #[serde(skip)]
    pub released: BTreeMap<ArtifactId, String>,
    /// Results replaced by a later run, with that run.
    #[serde(skip)]
    pub replaced: BTreeMap<NodeKey, String>,
}

impl Report {
    /// Returns the number of findings that make the audit fail.
    pub fn differences(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Difference).count()
    }

    /// Returns how many things were to be checked: artifacts, sources, nodes to recompute or derive, and what could not
    /// be checked.
    pub fn asked(&self) -> u64 {
        self.artifacts + self.sources + self.nodes.len() as u64 + self.others
    }

    /// Records that something was not checked.
    pub fn pass_over(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.unchecked.push(Unchecked { what: what.into(), why: why.into() });
    }

    /// Records that a released artifact was made again with its recorded digest.
    pub fn made_again(&mut self, id: &ArtifactId) {
        if let Some(what) = self.released.remove(id) {
            self.unchecked.retain(|one| one.what != what);
            // The note that it was released is taken back with it.
            self.findings.retain(|finding| {
                finding.severity != Severity::Note
                    || finding.check != "artifact"
                    || finding.place.as_ref().is_none_or(|place| format!("{place} of {}", finding.node) != what)
            });
        }
    }

    /// Records that something other than an artifact, source or recomputed node was not checked.
    pub(super) fn miss(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.others += 1;
        self.pass_over(what, why);
    }

    /// Records the outcome of recomputing or deriving a node.
    pub fn note_node(&mut self, node: &str, check: &'static str, outcome: &'static str, detail: String) {
        if outcome == NOT_CHECKED {
            self.pass_over(format!("{check} of {node}"), detail.clone());
        }
        self.nodes.push(NodeCheck { node: node.into(), check, outcome, detail });
    }

    /// Adds a finding.
    pub fn find(
        &mut self,
        severity: Severity,
        check: &'static str,
        node: &str,
        place: Option<String>,
        message: impl Into<String>,
    ) {
        let (node, message) = (node.into(), message.into());
        self.findings.push(Finding { severity, check, node, place, message });
    }

    pub(super) fn differs(&mut self, check: &'static str, node: &str, place: Option<String>, what: impl Into<String>) {
        self.find(Severity::Difference, check, node, place, what);
    }
}
