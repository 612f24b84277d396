//! Which row matched which test row: the table and the report.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use searchmill_engine::operator::{OperatorError, Outputs};

use super::tests_index::{Found, TestsIndex};
use crate::shared::columns::id_at;
use crate::shared::html::table::{NOTHING, Table, share};
use crate::shared::html::{self, Card};

/// Matches shown in the report.
const SHOWN: usize = 100;

/// A match and its row.
pub(super) struct Match {
    row: u64,
    id: Option<String>,
    found: Found,
}

/// Counts matches while the rows stream.
pub(super) struct Report {
    rows: u64,
    matched: u64,
    /// Rows with a listed match, by test set.
    by_set: Vec<u64>,
    shown: Vec<Vec<String>>,
}

impl Report {
    pub(super) fn new(index: &TestsIndex) -> Self {
        Self { rows: 0, matched: 0, by_set: vec![0; index.sets], shown: Vec::new() }
    }

    /// Counts the matches of a batch and returns them.
    pub(super) fn add(&mut self, found: Vec<Vec<Found>>, ids: Option<&StringArray>, index: &TestsIndex) -> Vec<Match> {
        let mut listed = Vec::new();
        for (row, found) in found.into_iter().enumerate() {
            self.rows += 1;
            self.matched += u64::from(!found.is_empty());
            // A row counts once for each test set, however many of its rows it matches.
            let sets: BTreeSet<usize> = found.iter().map(|found| index.tests[found.test as usize].set).collect();
            for set in sets {
                self.by_set[set - 1] += 1;
            }
            listed.extend(found.into_iter().map(|found| Match { row: self.rows, id: id_at(ids, row), found }));
        }
        self.shown.extend(listed.iter().take(SHOWN - self.shown.len()).map(|listed| listed.cells(index)));
        listed
    }

    /// Writes the page, the figures and the summary.
    pub(super) fn write(self, index: &TestsIndex, outputs: &mut Outputs) -> Result<(), OperatorError> {
        let mut table = Table::new("Contamination", &["Test set", "Rows", "Found", "Share", "Matching rows"]);
        for (set, matching) in (1..).zip(&self.by_set) {
            let (mut tests, mut found) = (0, 0);
            for test in index.tests.iter().filter(|test| test.set == set) {
                tests += 1;
                // Relaxed: the flags only ever become true, and the threads that set them are done.
                found += usize::from(test.found.load(Ordering::Relaxed));
            }
            let part = share(found, tests);
            table.row([set.to_string(), tests.to_string(), found.to_string(), part, matching.to_string()]);
        }
        outputs.figure("rows_before", self.rows as f64);
        outputs.figure("rows_matched", self.matched as f64);
        outputs.figure("tests_too_short", index.short as f64);
        outputs.summary(&table.render());
        if index.short > 0 {
            let what = if index.short == 1 { "1 test row was" } else { &format!("{} test rows were", index.short) };
            outputs.summary(&format!("{what} not compared: fewer words than `min_words`\n"));
        }
        let path = outputs.tree("report")?.join("report.html");
        let part = share(self.matched as usize, self.rows as usize);
        let card = Card("Rows that match".to_owned(), part, format!("{} of {}", self.matched, self.rows));
        let title = format!("First Matches (at most {SHOWN})");
        let header = ["Row", "Id", "Test set", "Test row", "Test id", "By", "Shared"];
        let matches = Table { rows: self.shown, ..Table::new(&title, &header) };
        html::write(&path, &html::page("Contamination", &(html::cards(&[card]) + &table.html() + &matches.html())))
    }
}

impl Match {
    fn cells(&self, index: &TestsIndex) -> Vec<String> {
        let test = &index.tests[self.found.test as usize];
        // A match has one of them, by what it was found.
        let shared = match (&self.found.ngram, self.found.similarity) {
            (Some(ngram), _) => ngram.clone(),
            (None, Some(similarity)) => format!("similarity {similarity:.3}"),
            (None, None) => String::new(),
        };
        let id = self.id.as_deref().unwrap_or(NOTHING).to_owned();
        let test_id = test.id.as_deref().unwrap_or(NOTHING).to_owned();
        let by = self.found.by.to_owned();
        vec![self.row.to_string(), id, test.set.to_string(), test.row.to_string(), test_id, by, shared]
    }
}

/// Returns the rows of the output `matches`.
pub(super) fn batch(listed: &[Match], index: &TestsIndex) -> Result<RecordBatch, OperatorError> {
    let (mut rows, mut ids, mut sets, mut set_rows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut test_ids, mut by, mut ngrams, mut similarities) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for listed in listed {
        let test = &index.tests[listed.found.test as usize];
        rows.push(listed.row as i64);
        ids.push(listed.id.as_deref());
        sets.push(test.set as i64);
        set_rows.push(test.row as i64);
        test_ids.push(test.id.as_deref());
        by.push(listed.found.by);
        ngrams.push(listed.found.ngram.as_deref());
        similarities.push(listed.found.similarity);
    }
    let columns: [(&str, ArrayRef, bool); 8] = [
        ("row", Arc::new(Int64Array::from(rows)), false),
        ("id", Arc::new(StringArray::from(ids)), true),
        ("against", Arc::new(Int64Array::from(sets)), false),
        ("against_row", Arc::new(Int64Array::from(set_rows)), false),
        ("against_id", Arc::new(StringArray::from(test_ids)), true),
        ("by", Arc::new(StringArray::from(by)), false),
        ("ngram", Arc::new(StringArray::from(ngrams)), true),
        ("similarity", Arc::new(Float64Array::from(similarities)), true),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}
