//! Rows of a table as people look at them: some of them, in an order, a page at a time, beside their scores.
//!
//! [`Table`] is a table with the columns of the node that scored its rows. `choice` finds the numbers of the rows to
//! look at, `page` reads rows by number, `column` counts the values of a column, `scores` finds the scorers, `rounds` sets the rounds of a loop side by side.

mod choice;
mod column;
mod page;
mod scores;
mod rounds;

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use searchmill_schemas::RecordKind;

pub use self::choice::{Choice, Order, Rows};
pub use self::column::{Bin, ColumnSummary, Common};
pub use self::rounds::{QuestionRounds, Rounds};
pub use self::scores::Scorer;
use super::failure::Failure;
use super::views::StoreView;
use crate::lineage::rows_with;
use crate::node_id::NodeId;
use crate::operator::{InputArtifact, RowsInput};
use crate::store::ArtifactId;

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
