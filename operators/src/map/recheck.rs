//! Check of recorded rows: the columns that were copied from the input.

use std::collections::BTreeSet;

use arrow::array::RecordBatch;
use searchmill_agent::prompt::Output;
use searchmill_engine::operator::{Inputs, OperatorError, Recheck, Rechecked, RowDifference};
use serde_json::Value;

use super::cells;
use super::params::{MapParams, ROWS};

/// Looks for an input row with the same copied columns. The answers are compared with the remembered ones.
pub(super) struct MapRecheck {
    /// Copied columns: those of the input that the operator does not write.
    columns: Vec<String>,
    given: BTreeSet<String>,
}

impl MapRecheck {
    pub(super) fn open(params: &MapParams, inputs: &Inputs) -> Result<Self, OperatorError> {
        let input = inputs.rows(ROWS)?;
        let answer = Output::new(&params.answer(), params.explode.as_deref());
        let answer =
            answer.map(|output| output.columns().clone()).map_err(|issue| OperatorError::pipeline(issue.message))?;
        // Another kind may store a column in another type, and derived ids differ.
        let kept_kind = params.kind.is_none();
        let is_copied =
            |name: &str| answer.column_with_name(name).is_none() && kept_kind && (name != "id" || params.keeps_ids());
        let names = input.schema.fields().iter().map(|field| field.name().clone());
        let columns: Vec<String> = names.filter(|name| is_copied(name)).collect();
        let mut given = BTreeSet::new();
        for batch in input.batches() {
            given.extend(shown(&batch?, &columns)?);
        }
        Ok(Self { columns, given })
    }
}

impl Recheck for MapRecheck {
    fn port(&self) -> &'static str {
        ROWS
    }

    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError> {
        let found = shown(rows, &self.columns)?;
        let strange = found.iter().filter(|row| !self.given.contains(*row));
        let difference = |row: &String| RowDifference {
            row: String::new(),
            what: "columns of the input".to_owned(),
            recorded: row.clone(),
            derived: "no such row was given".to_owned(),
        };
        Ok(Rechecked {
            compared: found.len() as u64,
            differences: strange.map(difference).collect(),
            ..Rechecked::default()
        })
    }
}

fn shown(rows: &RecordBatch, columns: &[String]) -> Result<Vec<String>, OperatorError> {
    Ok(cells::objects(rows, columns)?.into_iter().map(|row| Value::Object(row).to_string()).collect())
}
