//! Near duplicates by the vectors of a dense index.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use searchmill_engine::operator::{BlockingKernel, Context, Inputs, OperatorError, Outputs, RowsInput};
use searchmill_retrieval::IndexVectors;

use super::groups::{Details, Groups, Stays};
use crate::shared::columns::{id_at, id_column};
use crate::shared::forest::Forest;
use crate::shared::relation::ROWS;

/// Input of the index.
pub(super) const INDEX: &str = "index";

/// Compares all pairs of vectors of the index. Holds its vectors and the ids of the rows in memory.
pub(super) struct SimilarVectors {
    pub(super) threshold: f64,
    pub(super) keep: Stays,
}

/// Checks that rows can be found in the index.
pub(super) fn check_ids(schema: &SchemaRef) -> Result<(), OperatorError> {
    if id_column(&RecordBatch::new_empty(SchemaRef::clone(schema))).is_some() {
        return Ok(());
    }
    Err(OperatorError::pipeline("`near.vectors` finds rows in the index by their `id`, and these rows have none")
        .with_help("add the text column `id` by `sql`"))
}

impl BlockingKernel for SimilarVectors {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows(ROWS)?;
        check_ids(&rows.schema)?;
        let index = IndexVectors::open(inputs.tree(INDEX)?)?;
        let ids = ids(rows, context)?;
        let places = ids.iter().map(|id| index.row(id)).collect::<Result<Vec<u32>, _>>()?;
        let count = u32::try_from(ids.len())
            .map_err(|_| OperatorError::pipeline("`near` compares at most 4,294,967,295 rows"))?;
        // Rows with the same id have the same vector: only the first one is compared.
        let (mut forest, mut first) = (Forest::new(count), HashMap::new());
        for (row, place) in (0..count).zip(&places) {
            forest.join(row, *first.entry(*place).or_insert(row));
        }
        index.similar(&index, self.threshold, context, |pair| {
            // The index is compared with itself, so each pair comes twice, and each row with itself.
            if pair.row < pair.other
                && let (Some(&one), Some(&other)) = (first.get(&pair.row), first.get(&pair.other))
            {
                forest.join(one, other);
            }
        })?;
        let details = Details {
            id: &|row| Some(ids[row as usize].clone()),
            similarity: &|row, other| index.similarity(places[row as usize], places[other as usize]),
        };
        let groups = Groups::new(forest, count, self.keep);
        groups.write(rows, &details, outputs, context)?;
        groups.report(&format!("All pairs of vectors with a cosine of {} or more.\n", self.threshold), outputs);
        Ok(())
    }
}

fn ids(rows: &RowsInput, context: &Context) -> Result<Vec<String>, OperatorError> {
    let mut ids = Vec::new();
    for batch in rows.batches() {
        context.check_cancelled()?;
        let batch = batch?;
        let column = id_column(&batch);
        for row in 0..batch.num_rows() {
            let Some(id) = id_at(column.as_ref(), row) else {
                return Err(OperatorError::data(format!("row {} has no id", ids.len() + 1)));
            };
            ids.push(id);
        }
    }
    Ok(ids)
}
