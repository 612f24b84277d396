//! Near duplicates by MinHash.

use std::collections::HashMap;

use rayon::prelude::*;
use searchmill_engine::operator::{BlockingKernel, Context, Inputs, OperatorError, Outputs, RowsInput};
use searchmill_text::minhash::{Bands, jaccard};

use super::groups::{Details, Groups, Stays};
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
            let texts = texts.of(&batch?)?;
            let signatures: Vec<_> =
                texts.par_iter().map(|text| self.sketcher.signature(&self.sketcher.set(text))).collect();
            for signature in signatures {
                // A text that is too short has no signature, and no duplicates.
                if let Some(signature) = signature {
                    bands.add(count, &signature);
                }
                let Some(more) = count.checked_add(1) else {
                    return Err(OperatorError::pipeline("`near` compares at most 4,294,967,295 rows"));
                };
                count = more;
            }
        }
        bands.sort();
        Ok((bands, count))
    }

    /// Joins the similar rows of a group. Rows that are joined already are not compared.
    fn join(&self, group: impl Iterator<Item = u32>, candidates: &Candidates, forest: &mut Forest) {
        let mut parts: Vec<Vec<u32>> = Vec::new();
        for row in group {
            let set = &candidates[&row].set;
            let mut own = vec![row];
            parts.retain_mut(|part| {
                let joined = forest.root(row) == forest.root(part[0])
                    || part.iter().any(|other| self.sketcher.accepts(set, &candidates[other].set));
                if joined {
                    forest.join(row, part[0]);
                    // The shorter list is appended to the longer one, so that large groups stay linear.
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
        for row in bands.groups().flatten() {
            wanted[row as usize] = true;
        }
        let (mut candidates, mut start) = (Candidates::new(), 0);
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let (texts, ids) = (texts.of(&batch)?, id_column(&batch));
            // Most rows share no band with another, so their n-grams are not computed again.
            let shared = texts.par_iter().enumerate().filter(|(row, _)| wanted[start + row]);
            let read = shared.map(|(row, text)| {
                let candidate = Candidate { set: self.sketcher.set(text), id: id_at(ids.as_ref(), row) };
                ((start + row) as u32, candidate)
            });
            candidates.par_extend(read);
            start += batch.num_rows();
        }
        let mut forest = Forest::new(count);
        for group in bands.groups() {
            context.check_cancelled()?;
            self.join(group, &candidates, &mut forest);
        }
        // The memory of the bands, before the rows are read once more.
        drop(bands);
        let details = Details {
            id: &|row| candidates.get(&row).and_then(|candidate| candidate.id.clone()),
            similarity: &|row, other| jaccard(&candidates[&row].set, &candidates[&other].set),
        };
        let groups = Groups::new(forest, count, self.keep);
        groups.write(rows, &details, outputs, context)?;
        groups.report(&self.sketcher.describe(), outputs);
        Ok(())
    }
}
