//! Reads rows of a table by number, with their scores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array, new_null_array};
use arrow::compute::{concat_batches, take};
use arrow::datatypes::{Field, Schema};
use parquet::arrow::ProjectionMask;
use searchmill_schemas::text_column;

use super::super::failure::Failure;
use super::{Scores, Table};
use crate::error::OperatorError;
use crate::lineage::{open_part, rows_with, selection};
use crate::operator::RowsInput;

impl Table {
    /// Reads rows by number, in the order given, with these columns (of the table or its scores) in this order.
    ///
    /// # Errors
    /// Fails if a column does not exist, or if the table cannot be read.
    pub fn read(&self, rows: &[u64], columns: &[String]) -> Result<RecordBatch, Failure> {
        let every = self.columns();
        let mut fields: Vec<Field> = Vec::with_capacity(columns.len());
        let (mut own, mut of_scores) = (Vec::new(), Vec::new());
        for name in columns {
            let Some(field) = every.iter().find(|field| field.name() == name) else {
                return Err(Failure::usage(format!("there is no column `{name}`")));
            };
            let field = field.as_ref().clone();
            if self.rows.schema.index_of(name).is_ok() {
                own.push(name.clone());
                fields.push(field);
            } else {
                of_scores.push(name.clone());
                // A row without a score has nulls.
                fields.push(field.with_nullable(true));
            }
        }
        // Scores are found by the ids of the rows.
        if !of_scores.is_empty() && !own.iter().any(|name| name == "id") {
            own.push("id".to_owned());
        }
        let stored = by_number(&self.rows, &self.starts, rows, &own)?;
        let scores = match &self.scores {
            Some(scores) if !of_scores.is_empty() => Some(scores.of(&stored, rows, &of_scores)?),
            _ => None,
        };
        let mut arrays = Vec::with_capacity(fields.len());
        for name in columns {
            // The table's own column first: the scores have no column that the table has, save the ids.
            let column = stored.column_by_name(name).or_else(|| scores.as_ref()?.column_by_name(name));
            arrays.extend(column.cloned());
        }
        // Without columns, the arrays do not say how many rows there are.
        let count = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &count);
        batch.map_err(|error| Failure::Other(error.to_string()))
    }
}

impl Scores {
    /// Returns the scores of rows; null where a row has none.
    fn of(&self, stored: &RecordBatch, rows: &[u64], columns: &[String]) -> Result<RecordBatch, OperatorError> {
        let ids = text_column(stored, "id").map_err(|error| OperatorError::engine(error.to_string()))?;
        let ids: Vec<&str> = ids.iter().map(Option::unwrap_or_default).collect();
        let mut wanted = vec!["trajectory_id".to_owned()];
        wanted.extend_from_slice(columns);
        // Mostly the scores stand in the order of what they score: then they have the same numbers.
        if rows.iter().all(|row| *row < self.rows.rows) {
            let found = by_number(&self.rows, &self.starts, rows, &wanted)?;
            if text_column(&found, "trajectory_id").is_ok_and(|of| of.iter().eq(ids.iter().map(|id| Some(*id)))) {
                return Ok(found);
            }
        }
        let asked: BTreeSet<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let (mut numbers, mut slot_of) = (Vec::new(), BTreeMap::new());
        for (slot, scored) in (0_u64..).zip(rows_with(&self.rows, &["trajectory_id"], &asked)?) {
            numbers.push(scored.row);
            slot_of.insert(scored.matched, slot);
        }
        let found = by_number(&self.rows, &self.starts, &numbers, &wanted)?;
        taken(&found, &ids.iter().map(|id| slot_of.get(*id).copied()).collect())
    }
}

/// Reads columns of rows by number, in the order given.
fn by_number(
    table: &RowsInput,
    starts: &[u64],
    rows: &[u64],
    columns: &[String],
) -> Result<RecordBatch, OperatorError> {
    let wanted: BTreeSet<u64> = rows.iter().copied().collect();
    let mut batches = Vec::new();
    for (index, part) in table.parts().iter().enumerate() {
        let start = starts.get(index).copied().unwrap_or(0);
        let end = starts.get(index + 1).copied().unwrap_or(table.rows);
        let inside: Vec<usize> = wanted.range(start..end).map(|row| (row - start) as usize).collect();
        if inside.is_empty() {
            continue;
        }
        let builder = open_part(part)?;
        let mut roots = Vec::new();
        for (index, field) in builder.schema().fields().iter().enumerate() {
            if columns.contains(field.name()) {
                roots.push(index);
            }
        }
        let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
        let selection = selection(inside.into_iter()).into();
        for batch in builder.with_projection(mask).with_row_selection(selection).with_batch_size(1024).build()? {
            batches.push(batch?);
        }
    }
    let all = if let Some(first) = batches.first() {
        concat_batches(&first.schema(), &batches)?
    } else {
        let fields = table.schema.fields().iter().filter(|field| columns.contains(field.name()));
        RecordBatch::new_empty(Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>())))
    };
    if all.num_rows() != wanted.len() {
        return Err(OperatorError::engine(format!("{} of {} rows were read", all.num_rows(), wanted.len())));
    }
    let slots: BTreeMap<u64, u64> = wanted.into_iter().zip(0..).collect();
    taken(&all, &rows.iter().map(|row| slots.get(row).copied()).collect())
}

/// Takes rows of a batch; null where there is none.
fn taken(batch: &RecordBatch, slots: &UInt64Array) -> Result<RecordBatch, OperatorError> {
    let (mut fields, mut columns): (Vec<Field>, Vec<ArrayRef>) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let column = match batch.num_rows() {
            0 => new_null_array(column.data_type(), slots.len()),
            _ => take(column, slots, None)?,
        };
        fields.push(field.as_ref().clone().with_nullable(field.is_nullable() || column.null_count() > 0));
        columns.push(column);
    }
    let count = RecordBatchOptions::new().with_row_count(Some(slots.len()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &count)?)
}
