//! Groups of near duplicates: which row stays, and what the table of the others shows.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError, Outputs, RowsInput};
use serde::{Deserialize, Serialize};

use crate::shared::forest::Forest;
use crate::shared::relation::ROWS;

/// Output port of the dropped rows.
pub(super) const DUPLICATES: &str = "duplicates";

/// Which row of a key or group to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stays {
    /// The first in input order.
    #[default]
    First,
    /// The last in input order.
    Last,
}

/// What the table of dropped rows shows.
pub(super) struct Details<'a> {
    /// The id of a row.
    pub(super) id: &'a dyn Fn(u32) -> Option<String>,
    /// The similarity of a row to the one that stays.
    pub(super) similarity: &'a dyn Fn(u32, u32) -> f64,
}

/// The row that stays for each row.
pub(super) struct Groups(Vec<u32>);

impl Groups {
    pub(super) fn new(mut forest: Forest, count: u32, keep: Stays) -> Self {
        // The root of a group is its first row.
        let mut stays: Vec<u32> = (0..count).map(|row| forest.root(row)).collect();
        if keep == Stays::Last {
            let mut last: Vec<u32> = (0..count).collect();
            for (row, &root) in (0..count).zip(&stays) {
                last[root as usize] = row;
            }
            for root in &mut stays {
                *root = last[*root as usize];
            }
        }
        Self(stays)
    }

    /// Writes the rows that stay, and lists the others.
    pub(super) fn write(
        &self,
        rows: &RowsInput,
        details: &Details<'_>,
        outputs: &mut Outputs,
        context: &Context,
    ) -> Result<(), OperatorError> {
        // Empty tables first: an input without rows has outputs with columns.
        outputs.write(ROWS, &RecordBatch::new_empty(Arc::clone(&rows.schema)))?;
        outputs.write(DUPLICATES, &duplicates(&[], details)?)?;
        let mut start = 0;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let end = start + batch.num_rows() as u32;
            let (mut stay, mut dropped) = (Vec::with_capacity(batch.num_rows()), Vec::new());
            for (row, &other) in (start..end).zip(&self.0[start as usize..]) {
                stay.push(row == other);
                if row != other {
                    dropped.push((row, other));
                }
            }
            start = end;
            outputs.write(ROWS, &filter_record_batch(&batch, &BooleanArray::from(stay))?)?;
            outputs.write(DUPLICATES, &duplicates(&dropped, details)?)?;
        }
        Ok(())
    }

    /// Writes figures and the summary; `described` is how the rows were compared.
    pub(super) fn report(&self, described: &str, outputs: &mut Outputs) {
        let mut sizes = vec![0_usize; self.0.len()];
        for &row in &self.0 {
            sizes[row as usize] += 1;
        }
        // A group counts at the row that stays; the others have none.
        let (mut groups, mut largest, mut stay) = (0, 0, 0);
        for size in sizes {
            groups += usize::from(size > 1);
            stay += usize::from(size > 0);
            largest = largest.max(size);
        }
        outputs.figure("rows_before", self.0.len() as f64);
        outputs.figure("rows_after", stay as f64);
        outputs.figure("groups", groups as f64);
        let dropped = self.0.len() - stay;
        let mut text = format!("{dropped} of {} rows are near duplicates", self.0.len());
        if groups > 0 {
            text += &format!(", in {groups} groups of at most {largest} rows");
        }
        outputs.summary(&(text + ".\n" + described));
    }
}

/// Lists dropped rows and the rows that stay for them.
fn duplicates(dropped: &[(u32, u32)], details: &Details<'_>) -> Result<RecordBatch, OperatorError> {
    let (mut rows, mut ids, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let (mut other_ids, mut similarities) = (Vec::new(), Vec::new());
    for &(row, other) in dropped {
        // Users count rows from 1.
        rows.push(i64::from(row) + 1);
        ids.push((details.id)(row));
        others.push(i64::from(other) + 1);
        other_ids.push((details.id)(other));
        similarities.push((details.similarity)(row, other));
    }
    let columns: [(&str, ArrayRef, bool); 5] = [
        ("row", Arc::new(Int64Array::from(rows)), false),
        ("id", Arc::new(StringArray::from(ids)), true),
        ("kept_row", Arc::new(Int64Array::from(others)), false),
        ("kept_id", Arc::new(StringArray::from(other_ids)), true),
        ("similarity", Arc::new(Float64Array::from(similarities)), false),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}
