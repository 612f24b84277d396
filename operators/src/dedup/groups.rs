//! Groups of near duplicates: which row stays, and what is told of the others.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema};
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

/// What is told of dropped rows.
pub(super) struct Told<'a> {
    /// The id of a row.
    pub(super) id: &'a dyn Fn(u32) -> Option<String>,
    /// The similarity of a row to the one that stays.
    pub(super) similarity: &'a dyn Fn(u32, u32) -> f64,
}

/// The row that stays for each row.
pub(super) struct Groups(Vec<u32>);

impl Groups {
    pub(super) fn new(mut forest: Forest, count: u32, keep: Stays) -> Self {
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
        told: &Told<'_>,
        outputs: &mut Outputs,
        context: &Context,
    ) -> Result<(), OperatorError> {
        outputs.write(ROWS, &RecordBatch::new_empty(Arc::clone(&rows.schema)))?;
        outputs.write(DUPLICATES, &duplicates(&[], told)?)?;
        let mut start = 0;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let places = (start..start + batch.num_rows() as u32).zip(&self.0[start as usize..]);
            let (stay, dropped): (Vec<_>, Vec<_>) = places.map(|(row, &kept)| (row == kept, (row, kept))).unzip();
            start += batch.num_rows() as u32;
            outputs.write(ROWS, &filter_record_batch(&batch, &BooleanArray::from(stay))?)?;
            let dropped: Vec<_> = dropped.into_iter().filter(|(row, kept)| row != kept).collect();
            outputs.write(DUPLICATES, &duplicates(&dropped, told)?)?;
        }
        Ok(())
    }

    /// Writes figures and the summary; `described` is how the rows were compared.
    pub(super) fn report(&self, described: &str, outputs: &mut Outputs) {
        let mut sizes = vec![0_usize; self.0.len()];
        for &row in &self.0 {
            sizes[row as usize] += 1;
        }
        let groups = sizes.iter().filter(|&&size| size > 1).count();
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let stay = sizes.iter().filter(|&&size| size > 0).count();
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
fn duplicates(dropped: &[(u32, u32)], told: &Told<'_>) -> Result<RecordBatch, OperatorError> {
    let number = |row: u32| i64::from(row) + 1;
    let similarity = |&(row, kept): &(u32, u32)| (told.similarity)(row, kept);
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(dropped.iter().map(|(row, _)| number(*row))));
    let ids: ArrayRef = Arc::new(dropped.iter().map(|(row, _)| (told.id)(*row)).collect::<StringArray>());
    let kept: ArrayRef = Arc::new(Int64Array::from_iter_values(dropped.iter().map(|(_, kept)| number(*kept))));
    let kept_ids: ArrayRef = Arc::new(dropped.iter().map(|(_, kept)| (told.id)(*kept)).collect::<StringArray>());
    let similarities: ArrayRef = Arc::new(Float64Array::from_iter_values(dropped.iter().map(similarity)));
    let schema = Schema::new(vec![
        Field::new("row", DataType::Int64, false),
        Field::new("id", DataType::Utf8, true),
        Field::new("kept_row", DataType::Int64, false),
        Field::new("kept_id", DataType::Utf8, true),
        Field::new("similarity", DataType::Float64, false),
    ]);
    Ok(RecordBatch::try_new(Arc::new(schema), vec![rows, ids, kept, kept_ids, similarities])?)
}
