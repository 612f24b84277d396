//! Check of recorded rows: the columns that were copied from the input.

use std::collections::BTreeSet;

use arrow::array::RecordBatch;
use searchmill_agent::prompt::Output;
use searchmill_engine::operator::{Inputs, OperatorError, Recheck, Rechecked, RowDifference};

use super::params::{MapParams, ROWS};
use super::rows::json_texts;

/// Looks for an input row with the same copied columns. The answers are compared with the remembered ones.
pub(super) struct MapRecheck {
    /// Copied columns: those of the input that the operator does not write.
    columns: Vec<String>,
    input_rows: BTreeSet<String>,
}

impl MapRecheck {
    pub(super) fn open(params: &MapParams, inputs: &Inputs) -> Result<Self, OperatorError> {
        let input = inputs.rows(ROWS)?;
        let output = Output::new(&params.answer(), params.explode.as_deref())
            .map_err(|issue| OperatorError::pipeline(issue.message))?;
        let keeps_ids = params.samples == 1 && params.explode.is_none();
        let mut columns = Vec::new();
        for field in input.schema.fields() {
            let name = field.name();
            let is_written = output.columns().column_with_name(name).is_some();
            // Another kind may store a column in another type, and derived ids differ.
            if !is_written && params.kind.is_none() && (name != "id" || keeps_ids) {
                columns.push(name.clone());
            }
        }
        let mut input_rows = BTreeSet::new();
        for batch in input.batches() {
            input_rows.extend(json_texts(&batch?, &columns)?);
        }
        Ok(Self { columns, input_rows })
    }
}

impl Recheck for MapRecheck {
    fn port(&self) -> &'static str {
        ROWS
    }

    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError> {
        let mut found = Rechecked::default();
        for row in json_texts(rows, &self.columns)? {
            found.compared += 1;
            if !self.input_rows.contains(&row) {
                found.differences.push(RowDifference {
                    row: String::new(),
                    what: "columns of the input".to_owned(),
                    recorded: row,
                    derived: "no such row was given".to_owned(),
                });
            }
        }
        Ok(found)
    }
}
