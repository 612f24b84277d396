//! What an audit found, and what it did not look at.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::fingerprint::NodeKey;
use crate::store::ArtifactId;

/// The outcome of a node that nothing was compared of.
pub const NOT_CHECKED: &str = "not checked";

/// Does a finding make an audit fail?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something is not what was recorded.
    Difference,
    /// Worth knowing; nothing recorded is wrong.
    Note,
}

/// Something that an audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Does it make the audit fail?
    pub severity: Severity,
    /// What was checked: `record`, `ledger`, `artifact`, `lineage`, `source`, `memo`, `replay`, `recheck`, `answers`.
    pub check: &'static str,
    /// The node.
    pub node: String,
    /// Artifact, file, row or column, where there is one.
    pub place: Option<String>,
    /// What is wrong.
    pub message: String,
}

/// A node that was computed or derived again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCheck {
    /// The node.
    pub node: String,
    /// `replay`, `recheck` or `answers`.
    pub check: &'static str,
    /// `same`, `differs` or `not checked`.
    pub outcome: &'static str,
    /// How much was compared, or why nothing was.
    pub detail: String,
}

/// Something that was to be checked and was not looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// What: a node, an artifact, a source.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// What was checked and what was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Result records.
    pub records: u64,
    /// Artifacts.
    pub artifacts: u64,
    /// Their files.
    pub files: u64,
    /// Bytes of these files, all of them read.
    pub bytes: u64,
    /// Outside files and identities.
    pub sources: u64,
    /// Of these, local files that are there with the recorded content.
    pub sources_unchanged: u64,
    /// Nodes that were computed or derived again.
    pub nodes: Vec<NodeCheck>,
    /// What was to be checked and was not looked at.
    pub unchecked: Vec<Unchecked>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// Things that were to be checked and are none of the above.
    #[serde(skip)]
    pub others: u64,
    /// Artifacts that are not what was written.
    #[serde(skip)]
    pub damaged: BTreeSet<ArtifactId>,
    /// Results that a later run has replaced, with that run.
    #[serde(skip)]
    pub replaced: BTreeMap<NodeKey, String>,
}

impl Report {
    /// Findings that make the audit fail.
    #[must_use]
    pub fn differences(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Difference).count()
    }

    /// How many things were to be checked: artifacts, sources, nodes that were to be computed or derived again, and what
    /// could not be looked at.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.artifacts + self.sources + self.nodes.len() as u64 + self.others
    }

    /// Notes that something was not looked at.
    pub fn pass_over(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.unchecked.push(Unchecked { what: what.into(), why: why.into() });
    }

    /// Notes that something was not looked at that is neither artifact nor source nor node to compute again.
    pub(super) fn miss(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.others += 1;
        self.pass_over(what, why);
    }

    /// Notes what came of computing or deriving a node again.
    pub fn note_node(&mut self, node: &str, check: &'static str, outcome: &'static str, detail: String) {
        if outcome == NOT_CHECKED {
            self.pass_over(format!("{check} of {node}"), detail.clone());
        }
        self.nodes.push(NodeCheck { node: node.to_owned(), check, outcome, detail });
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
        let (node, message) = (node.to_owned(), message.into());
        self.findings.push(Finding { severity, check, node, place, message });
    }

    pub(super) fn differs(
        &mut self,
        check: &'static str,
        node: &str,
        place: Option<String>,
        message: impl Into<String>,
    ) {
        self.find(Severity::Difference, check, node, place, message);
    }
}
