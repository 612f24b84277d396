//! Rows of a table as people look at them: some of them, in an order, a page at a time, beside their scores.
//!
//! [`Table`] is a table with the columns of the node that scored its rows ([`Scorer`]). `choice` finds the numbers of
//! the rows to look at, `page` reads rows by number, `column` counts the values of a column, `rounds` sets the rounds of
//! a loop side by side.

mod choice;
mod column;
mod page;
mod rounds;

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use searchmill_schemas::RecordKind;
use serde::Serialize;

pub use self::choice::{Choice, Order, Rows};
pub use self::column::{Bin, ColumnSummary, Common};
pub use self::rounds::{QuestionRounds, Rounds};
use super::failure::Failure;
use super::history::RunsView;
use super::open::StoreView;
use crate::lineage::rows_with;
use crate::node_id::NodeId;
use crate::operator::{InputArtifact, PortType, RowsInput};
use crate::store::{ArtifactId, NodeRun, Store};

/// A table to browse.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its artifact.
    pub artifact: ArtifactId,
    /// Its rows.
    pub rows: RowsInput,
    /// Number of the first row of each part.
    starts: Vec<u64>,
    scores: Option<Scores>,
}

/// The scores of a table's rows.
#[derive(Clone, Debug)]
struct Scores {
    /// The node that made them.
    node: NodeId,
    rows: RowsInput,
    starts: Vec<u64>,
    /// Columns that the scored table lacks.
    columns: Vec<FieldRef>,
}

impl StoreView<'_> {
    /// Opens a table, with the columns of what scored its rows.
    ///
    /// # Errors
    /// Fails if an artifact is missing, damaged, or a folder.
    pub fn browse(&self, artifact: &ArtifactId, scorer: Option<&Scorer>) -> Result<Table, Failure> {
        let (rows, starts) = self.parts(artifact)?;
        let scores = match scorer {
            None => None,
            Some(scorer) => {
                let (scores, starts) = self.parts(&scorer.scores)?;
                let mut columns = Vec::new();
                for field in scores.schema.fields() {
                    // Numbers, yes or no, and texts say something of a row; ids and lists do not.
                    let is_id = matches!(field.name().as_str(), "id" | "trajectory_id");
                    let is_list = matches!(field.data_type(), DataType::List(_));
                    if !is_id && !is_list && rows.schema.index_of(field.name()).is_err() {
                        columns.push(Arc::clone(field));
                    }
                }
                Some(Scores { node: scorer.node.clone(), columns, rows: scores, starts })
            }
        };
        Ok(Table { artifact: *artifact, rows, starts, scores })
    }

    /// Opens a table; returns the number of the first row of each part, too.
    fn parts(&self, artifact: &ArtifactId) -> Result<(RowsInput, Vec<u64>), Failure> {
        let rows = match self.artifact(artifact)? {
            InputArtifact::Rows(rows) => rows,
            InputArtifact::Tree(tree) => {
                return Err(Failure::usage(format!("{artifact} is a folder ({}), not a table", tree.kind.name())));
            }
        };
        let described = self.session.existing()?.artifact(artifact);
        let mut starts = Vec::with_capacity(rows.parts().len());
        let mut next = 0;
        for part in described.iter().flat_map(|described| &described.parts) {
            starts.push(next);
            next += part.rows;
        }
        Ok((rows, starts))
    }
}

impl Table {
    /// Returns all columns: those of the table, then those of its scores.
    pub fn columns(&self) -> Vec<FieldRef> {
        let scores = self.scores.iter().flat_map(|scores| &scores.columns);
        self.rows.schema.fields().iter().chain(scores).cloned().collect()
    }

    /// Returns the record kind of the rows.
    pub fn kind(&self) -> RecordKind {
        self.rows.kind
    }

    /// Returns the number of the row with this id.
    ///
    /// # Errors
    /// Fails if the table cannot be read.
    pub fn position(&self, id: &str) -> Result<Option<u64>, Failure> {
        let found = rows_with(&self.rows, &["id"], &[id.to_owned()].into())?;
        Ok(found.first().map(|place| place.row))
    }
}

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
