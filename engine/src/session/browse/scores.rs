//! Finds the nodes of a run that scored the rows of a table.

use searchmill_schemas::RecordKind;
use serde::Serialize;

use super::super::failure::Failure;
use super::super::views::RunsView;
use crate::node_id::NodeId;
use crate::operator::PortType;
use crate::store::{ArtifactId, NodeRun, Store};

/// A node that scored the rows of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scorer {
    /// The node.
    pub node: NodeId,
    /// Its table of scores.
    pub scores: ArtifactId,
}

impl RunsView<'_> {
    /// Returns the nodes of a run that scored the rows of this table, by name.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn scorers(&self, run: &str, artifact: &ArtifactId) -> Result<Vec<Scorer>, Failure> {
        let store = self.session.existing()?;
        Ok(scorers_among(store, &store.run_nodes(run), artifact))
    }

    /// Returns the rollouts that a node of a run scored, with the node as their scorer; `None` if it scored none.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn scored(&self, run: &str, node: &str) -> Result<Option<(ArtifactId, Scorer)>, Failure> {
        let store = self.session.existing()?;
        let nodes = store.run_nodes(run);
        let Some(node) = nodes.iter().rfind(|other| other.node == node) else { return Ok(None) };
        let Some(scores) = score_table(node) else { return Ok(None) };
        let rollouts = Some(PortType::Rows(RecordKind::Trajectory));
        for input in store.inputs_of(node) {
            let id = ArtifactId::from(input.digest);
            if store.artifact(&id).is_some_and(|artifact| artifact.artifact_type.port_type() == rollouts) {
                return Ok(Some((id, Scorer { node: node.node.clone(), scores })));
            }
        }
        Ok(None)
    }
}

/// Returns those of these nodes that scored the rows of a table, by name.
pub(super) fn scorers_among(store: &Store, nodes: &[NodeRun], artifact: &ArtifactId) -> Vec<Scorer> {
    // A scorer reads questions, too, and an empty table may equal any other: scores are those of rollouts.
    let rollouts = Some(PortType::Rows(RecordKind::Trajectory));
    let kind = store.artifact(artifact).and_then(|artifact| artifact.artifact_type.port_type());
    let mut found = Vec::new();
    if kind != rollouts {
        return found;
    }
    for node in nodes {
        if let Some(scores) = score_table(node)
            && store.inputs_of(node).iter().any(|input| input.digest == artifact.digest())
        {
            found.push(Scorer { node: node.node.clone(), scores });
        }
    }
    found.sort_by(|one, other| one.node.cmp(&other.node));
    found
}

fn score_table(node: &NodeRun) -> Option<ArtifactId> {
    let scores = Some(PortType::Rows(RecordKind::Score));
    let output = node.outputs.values().find(|output| output.artifact_type.port_type() == scores);
    output.map(|output| output.id)
}
