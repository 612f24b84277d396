//! Matches by the vectors of dense indexes.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{Context, Inputs, OperatorError};
use searchmill_retrieval::IndexVectors;

use super::tests_index::{Found, LISTED, TestsIndex};
use crate::shared::columns::{id_at, id_column};

/// Input of the rows' index.
pub(super) const INDEX: &str = "index";
/// Input of the test sets' indexes.
pub(super) const AGAINST_INDEX: &str = "against_index";

/// Similar test rows by row of the index.
pub(super) struct ByVectors<'a> {
    rows: IndexVectors,
    tests: &'a TestsIndex,
    /// Numbers of test rows, ascending, with their similarity.
    similar: BTreeMap<u32, Vec<(u32, f64)>>,
}

impl<'a> ByVectors<'a> {
    /// Compares all rows of the index with all test rows.
    pub(super) fn new(
        threshold: f64,
        inputs: &Inputs,
        tests: &'a TestsIndex,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let rows = IndexVectors::open(inputs.tree(INDEX)?)?;
        let sets = inputs.trees(AGAINST_INDEX);
        if sets.len() != tests.sets {
            let message = format!("found {} indexes for {} test sets", sets.len(), tests.sets);
            return Err(OperatorError::pipeline(message)
                .with_help("name one index for each test set, in the same order: `against_index: [one, two]`"));
        }
        let mut similar: BTreeMap<u32, Vec<(u32, f64)>> = BTreeMap::new();
        for (set, tree) in (1..).zip(sets) {
            let against = IndexVectors::open(tree)?;
            let mut numbers: HashMap<u32, Vec<u32>> = HashMap::new();
            for (number, test) in (0_u32..).zip(&tests.tests).filter(|(_, test)| test.set == set) {
                let Some(id) = &test.id else {
                    return Err(OperatorError::data(format!("row {} of test set {set} has no id", test.row)));
                };
                // Test rows may share an id, and with it one vector.
                numbers.entry(against.row(id)?).or_default().push(number);
            }
            rows.similar(&against, threshold, context, |pair| {
                let tests = numbers.get(&pair.other).into_iter().flatten();
                similar.entry(pair.row).or_default().extend(tests.map(|test| (*test, pair.similarity)));
            })?;
        }
        for tests in similar.values_mut() {
            // In the order of the test rows: only the first `LISTED` are listed.
            tests.sort_by_key(|(test, _)| *test);
        }
        Ok(Self { rows, tests, similar })
    }

    /// Adds the matches of the rows of a batch, at most [`LISTED`] each.
    pub(super) fn find(&self, batch: &RecordBatch, found: &mut [Vec<Found>]) -> Result<(), OperatorError> {
        let ids = id_column(batch);
        for (row, found) in found.iter_mut().enumerate() {
            let Some(id) = id_at(ids.as_ref(), row) else {
                let message = "`vectors` finds rows in the index by their `id`, and these rows have none";
                return Err(OperatorError::pipeline(message).with_help("add the text column `id` by `sql`"));
            };
            let Some(similar) = self.similar.get(&self.rows.row(&id)?) else { continue };
            // All of them count as found, also those beyond the list.
            for (test, _) in similar {
                self.tests.tests[*test as usize].found.store(true, Ordering::Relaxed);
            }
            for &(test, similarity) in similar.iter().take(LISTED) {
                found.push(Found { test, by: "vectors", ngram: None, similarity: Some(similarity) });
            }
        }
        Ok(())
    }
}
