//! Which row matched which test row: the table and the report.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use searchmill_engine::operator::{OperatorError, Outputs};

use super::tests_index::{Found, Test, TestsIndex};
use crate::shared::columns::id_at;
use crate::shared::html;
use crate::shared::html::Card;
use crate::shared::html::table::{NOTHING, Table, share};

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
        for (place, found) in found.into_iter().enumerate() {
            self.rows += 1;
            self.matched += u64::from(!found.is_empty());
            let sets: BTreeSet<usize> = found.iter().map(|found| index.tests[found.test as usize].set).collect();
            for set in sets {
                self.by_set[set - 1] += 1;
            }
            listed.extend(found.into_iter().map(|found| Match { row: self.rows, id: id_at(ids, place), found }));
        }
        let room = SHOWN - self.shown.len();
        self.shown.extend(listed.iter().take(room).map(|listed| listed.cells(index)));
        listed
    }

    /// Writes the page, the figures and the summary.
    pub(super) fn write(self, index: &TestsIndex, outputs: &mut Outputs) -> Result<(), OperatorError> {
        let table = self.table(index);
        outputs.figure("rows_before", self.rows as f64);
        outputs.figure("rows_matched", self.matched as f64);
        outputs.figure("tests_too_short", index.short as f64);
        outputs.summary(&table.render());
        if index.short > 0 {
            let what = if index.short == 1 { "1 test row was" } else { &format!("{} test rows were", index.short) };
            outputs.summary(&format!("{what} not compared: fewer words than `min_words`\n"));
        }
        let folder = outputs.tree("report")?;
        html::write(&folder.join("report.html"), &self.page(&table))
    }

    fn table(&self, index: &TestsIndex) -> Table {
        let mut table = Table::new("Contamination", &["Test set", "Rows", "Found", "Share", "Matching rows"]);
        for (place, matching) in self.by_set.iter().enumerate() {
            let tests = || index.tests.iter().filter(|test| test.set == place + 1);
            let found = tests().filter(|test| test.found.load(Ordering::Relaxed)).count();
            let set = (place + 1).to_string();
            let part = share(found, tests().count());
            table.row([set, tests().count().to_string(), found.to_string(), part, matching.to_string()]);
        }
        table
    }

    fn page(self, table: &Table) -> String {
        let part = share(self.matched as usize, self.rows as usize);
        let card = Card("Rows that match".to_owned(), part, format!("{} of {}", self.matched, self.rows));
        let title = format!("First Matches (at most {SHOWN})");
        let header = ["Row", "Id", "Test set", "Test row", "Test id", "By", "Shared"];
        let matches = Table { rows: self.shown, ..Table::new(&title, &header) };
        html::page("Contamination", &(html::cards(&[card]) + &table.html() + &matches.html()))
    }
}

impl Match {
    fn test<'a>(&self, index: &'a TestsIndex) -> &'a Test {
        &index.tests[self.found.test as usize]
    }

    fn cells(&self, index: &TestsIndex) -> Vec<String> {
        let test = self.test(index);
        let id = |id: &Option<String>| id.clone().unwrap_or_else(|| NOTHING.to_owned());
        let similarity = self.found.similarity.map(|similarity| format!("similarity {similarity:.3}"));
        let shared = self.found.ngram.clone().or(similarity).unwrap_or_default();
        let by = self.found.by.to_owned();
        vec![self.row.to_string(), id(&self.id), test.set.to_string(), test.row.to_string(), id(&test.id), by, shared]
    }
}

/// Returns the rows of the output `matches`.
pub(super) fn batch(listed: &[Match], index: &TestsIndex) -> Result<RecordBatch, OperatorError> {
    let whole = |number: &dyn Fn(&Match) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(listed.iter().map(number)))
    };
    let text = |text: &dyn Fn(&Match) -> Option<String>| -> ArrayRef {
        Arc::new(listed.iter().map(text).collect::<StringArray>())
    };
    let similarities = listed.iter().map(|listed| listed.found.similarity).collect::<Float64Array>();
    let columns: [(&str, ArrayRef, bool); 8] = [
        ("row", whole(&|listed| listed.row as i64), false),
        ("id", text(&|listed| listed.id.clone()), true),
        ("against", whole(&|listed| listed.test(index).set as i64), false),
        ("against_row", whole(&|listed| listed.test(index).row as i64), false),
        ("against_id", text(&|listed| listed.test(index).id.clone()), true),
        ("by", text(&|listed| Some(listed.found.by.to_owned())), false),
        ("ngram", text(&|listed| listed.found.ngram.clone()), true),
        ("similarity", Arc::new(similarities), true),
    ];
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns
        .into_iter()
        .map(|(name, array, nullable)| (Field::new(name, DataType::clone(array.data_type()), nullable), array))
        .unzip();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}
