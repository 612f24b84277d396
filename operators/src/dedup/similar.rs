//! Near duplicates by MinHash.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema};
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{BlockingKernel, Context, Inputs, OperatorError, Outputs, RowsInput};
use searchmill_text::minhash::{Bands, jaccard};
use serde::{Deserialize, Serialize};

use crate::columns::{id_at, id_column};
use crate::forest::Forest;
use crate::near::{Near, Sketcher, Texts};
use crate::relation::ROWS;

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

/// Reads the rows three times: for the signatures, for the texts of candidates, and to write the rows that stay. Holds
/// the bands' hashes of each row (16 bytes each) and the n-grams of candidates in memory.
pub(super) struct Similar {
    near: Near,
    keep: Stays,
    sketcher: Sketcher,
}

/// A row that shares a band with others.
struct Candidate {
    set: Box<[u64]>,
    id: Option<String>,
}

/// Candidates by row.
type Candidates = HashMap<u32, Candidate>;

impl Similar {
    pub(super) fn new(near: &Near, keep: Stays) -> Self {
        Self { near: near.clone(), keep, sketcher: Sketcher::new(&near.minhash) }
    }

    /// Returns the bands of all rows, and the number of rows.
    fn bands(&self, rows: &RowsInput, texts: &Texts, context: &Context) -> Result<(Bands, u32), OperatorError> {
        let (mut bands, mut count) = (self.sketcher.bands(), 0_u32);
        for batch in rows.batches() {
            context.check_cancelled()?;
            let sketch = |text: &String| self.sketcher.signature(&self.sketcher.set(text));
            let signatures: Vec<_> = texts.of(&batch?)?.par_iter().map(sketch).collect();
            for signature in signatures {
                if let Some(signature) = signature {
                    bands.add(count, &signature);
                }
                let more = count.checked_add(1);
                count = more.ok_or_else(|| OperatorError::pipeline("`near` compares at most 4,294,967,295 rows"))?;
            }
        }
        bands.sort();
        Ok((bands, count))
    }

    fn candidates(
        &self,
        rows: &RowsInput,
        texts: &Texts,
        wanted: &[bool],
        context: &Context,
    ) -> Result<Candidates, OperatorError> {
        let (mut candidates, mut start) = (Candidates::new(), 0);
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let (texts, ids) = (texts.of(&batch)?, id_column(&batch));
            let candidate = |(place, text): (usize, &String)| {
                let row = start + place;
                let candidate = || Candidate { set: self.sketcher.set(text), id: id_at(ids.as_ref(), place) };
                wanted[row].then(|| (row as u32, candidate()))
            };
            candidates.extend(texts.par_iter().enumerate().filter_map(candidate).collect::<Vec<_>>());
            start += batch.num_rows();
        }
        Ok(candidates)
    }

    /// Joins the similar rows of a group. Rows that are joined already are not compared.
    fn join(&self, group: impl Iterator<Item = u32>, candidates: &Candidates, forest: &mut Forest) {
        let similar = |a: u32, b: u32| self.sketcher.accepts(&candidates[&a].set, &candidates[&b].set);
        let mut parts: Vec<Vec<u32>> = Vec::new();
        for row in group {
            let mut own = vec![row];
            parts.retain_mut(|part| {
                let joined = forest.root(row) == forest.root(part[0]) || part.iter().any(|&other| similar(row, other));
                if joined {
                    forest.join(row, part[0]);
                    if own.len() < part.len() {
                        std::mem::swap(&mut own, part);
                    }
                    own.append(part);
                }
                !joined
            });
            parts.push(own);
        }
    }

    /// Returns the row that stays for each row.
    fn kept(&self, mut forest: Forest, count: u32) -> Vec<u32> {
        let mut stays: Vec<u32> = (0..count).map(|row| forest.root(row)).collect();
        if self.keep == Stays::Last {
            let mut last: Vec<u32> = (0..count).collect();
            for (row, &root) in (0..count).zip(&stays) {
                last[root as usize] = row;
            }
            for root in &mut stays {
                *root = last[*root as usize];
            }
        }
        stays
    }
}

impl BlockingKernel for Similar {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows(ROWS)?;
        let texts = Texts::new(&rows.schema, "near.columns", &self.near.columns)?;
        let (bands, count) = self.bands(rows, &texts, context)?;
        let mut wanted = vec![false; count as usize];
        bands.groups().flatten().for_each(|row| wanted[row as usize] = true);
        let candidates = self.candidates(rows, &texts, &wanted, context)?;
        let mut forest = Forest::new(count);
        for group in bands.groups() {
            context.check_cancelled()?;
            self.join(group, &candidates, &mut forest);
        }
        drop(bands);
        let kept = self.kept(forest, count);
        write(rows, &kept, &candidates, outputs, context)?;
        self.report(&kept, outputs);
        Ok(())
    }
}

/// Writes the rows that stay, and lists the others.
fn write(
    rows: &RowsInput,
    kept: &[u32],
    candidates: &Candidates,
    outputs: &mut Outputs,
    context: &Context,
) -> Result<(), OperatorError> {
    outputs.write(ROWS, &RecordBatch::new_empty(Arc::clone(&rows.schema)))?;
    outputs.write(DUPLICATES, &duplicates(&[], candidates)?)?;
    let mut start = 0;
    for batch in rows.batches() {
        context.check_cancelled()?;
        let batch = batch?;
        let places = (start..start + batch.num_rows() as u32).zip(&kept[start as usize..]);
        let (stay, dropped): (Vec<_>, Vec<_>) = places.map(|(row, &kept)| (row == kept, (row, kept))).unzip();
        start += batch.num_rows() as u32;
        outputs.write(ROWS, &filter_record_batch(&batch, &BooleanArray::from(stay))?)?;
        let dropped: Vec<_> = dropped.into_iter().filter(|(row, kept)| row != kept).collect();
        outputs.write(DUPLICATES, &duplicates(&dropped, candidates)?)?;
    }
    Ok(())
}

/// Lists dropped rows and the rows that stay for them.
fn duplicates(dropped: &[(u32, u32)], candidates: &Candidates) -> Result<RecordBatch, OperatorError> {
    let number = |row: u32| i64::from(row) + 1;
    let id = |row: u32| candidates.get(&row).and_then(|candidate| candidate.id.as_deref());
    let similarity = |&(row, kept): &(u32, u32)| jaccard(&candidates[&row].set, &candidates[&kept].set);
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(dropped.iter().map(|(row, _)| number(*row))));
    let ids: ArrayRef = Arc::new(dropped.iter().map(|(row, _)| id(*row)).collect::<StringArray>());
    let kept: ArrayRef = Arc::new(Int64Array::from_iter_values(dropped.iter().map(|(_, kept)| number(*kept))));
    let kept_ids: ArrayRef = Arc::new(dropped.iter().map(|(_, kept)| id(*kept)).collect::<StringArray>());
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

impl Similar {
    fn report(&self, kept: &[u32], outputs: &mut Outputs) {
        let mut sizes = vec![0_usize; kept.len()];
        for &row in kept {
            sizes[row as usize] += 1;
        }
        let groups = sizes.iter().filter(|&&size| size > 1).count();
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let stay = sizes.iter().filter(|&&size| size > 0).count();
        outputs.figure("rows_before", kept.len() as f64);
        outputs.figure("rows_after", stay as f64);
        outputs.figure("groups", groups as f64);
        let dropped = kept.len() - stay;
        let mut text = format!("{dropped} of {} rows are near duplicates", kept.len());
        if groups > 0 {
            text += &format!(", in {groups} groups of at most {largest} rows");
        }
        outputs.summary(&(text + ".\n" + &self.sketcher.describe()));
    }
}
