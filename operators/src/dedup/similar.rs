//! Near duplicates by MinHash.

use std::collections::HashMap;

use rayon::prelude::*;
use searchmill_engine::operator::{BlockingKernel, Context, Inputs, OperatorError, Outputs, RowsInput};
use searchmill_text::minhash::{Bands, jaccard};

use super::groups::{Groups, Stays, Told};
use crate::shared::columns::{id_at, id_column};
use crate::shared::forest::Forest;
use crate::shared::near::{Near, Sketcher, Texts};
use crate::shared::relation::ROWS;

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
        let id = |row: u32| candidates.get(&row).and_then(|candidate| candidate.id.clone());
        let similarity = |row: u32, kept: u32| jaccard(&candidates[&row].set, &candidates[&kept].set);
        let groups = Groups::new(forest, count, self.keep);
        groups.write(rows, &Told { id: &id, similarity: &similarity }, outputs, context)?;
        groups.report(&self.sketcher.describe(), outputs);
        Ok(())
    }
}
