//! `decontaminate`: drops or marks rows that share text with test sets.

mod by_vectors;
mod matches;
mod tests_index;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field};
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, InputArtifact, Inputs, Kernel, Operator,
    OperatorError, Outputs, ParamIssue, Ports, TreeKind,
};
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};

use super::shared::columns::{id_column, with_columns};
use super::shared::near::{Cosine, Minhash, Texts, column_issues, text_column};
use super::shared::relation::{ROWS, columns_checked};
use by_vectors::{AGAINST_INDEX, ByVectors, INDEX};
use matches::Report;
use tests_index::{Found, TestsIndex};

const AGAINST: &str = "against";
const MATCHES: &str = "matches";
/// Column of `mark`.
const CONTAMINATED: &str = "contaminated";

/// Finds rows that share text with rows of test sets: an n-gram of words (13, as for GPT-3: Brown et al. 2020, appendix
/// C), with `minhash` most of their n-grams, or with `vectors` what they say. Words are lower-case, without punctuation, as in datatrove's
/// decontamination, which also removes accents and replaces numbers; one ideograph, kana or Hangul syllable is a word,
/// and the Unicode forms of a word are equal. The
/// row is dropped; GPT-3 dropped only the text around the n-gram. `matches` lists at most 10 test rows for each row.
pub(crate) struct Decontaminate;

/// Parameters of `decontaminate`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct DecontaminateParams {
    /// Columns of `rows` to compare: text columns or SQL expressions; several are compared as one text (`[text]`).
    pub(crate) columns: Vec<String>,
    /// Columns of the test sets. Default: `columns`.
    pub(crate) against_columns: Vec<String>,
    /// Words per n-gram (13; 0 = compare by `minhash` alone). One shared n-gram is a match.
    pub(crate) ngram: usize,
    /// A test text with fewer words than `ngram` matches rows that contain all of it, if it has at least this many words
    /// (8, the smallest n-gram of GPT-3's filter).
    pub(crate) min_words: usize,
    /// Also match by the similarity of all n-grams (default: no). A match is a similarity of `threshold` or more.
    pub(crate) minhash: Option<Minhash>,
    /// Also match by the vectors of dense indexes: that of the rows, `index`, and those of the test sets, `against_index`, in
    /// their order (default: no).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vectors: Option<Cosine>,
    /// Keep all rows and add the column `contaminated` (default: drop the rows that match).
    pub(crate) mark: bool,
}

impl Default for DecontaminateParams {
    fn default() -> Self {
        let (columns, against_columns) = (text_column(), Vec::new());
        Self { columns, against_columns, ngram: 13, min_words: 8, minhash: None, vectors: None, mark: false }
    }
}

impl Operator for Decontaminate {
    type Params = DecontaminateParams;
    const NAME: &'static str = "decontaminate";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Drops or marks rows that share text with test sets.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Training questions without those of the test set, and without rewordings of them",
            yaml: "clean: {op: decontaminate, from: {rows: train, against: test}, with: {columns: [question], minhash: {ngram: 3, threshold: 0.5}}}",
        },
        Example {
            title: "Documents that contain a question of two test sets, marked",
            yaml: "marked: {op: decontaminate, from: {rows: corpus, against: [bamboogle, musique]}, with: {against_columns: [question], mark: true}}",
        },
        Example {
            title: "By similarity alone",
            yaml: "clean: {op: decontaminate, from: {rows: train, against: test}, with: {columns: [question], ngram: 0, minhash: {banding: {bands: 32, rows: 4}}}}",
        },
        Example {
            title: "Also those that say the same in other words, by the vectors of dense indexes",
            yaml: "clean: {op: decontaminate, from: {rows: passages, index: dense, against: held_out, against_index: held_out_dense}, with: {vectors: {threshold: 0.95}}}",
        },
    ];

    fn declare(params: &DecontaminateParams) -> Declaration {
        let matches = "`row` (counted from 1), `id`, `against` (number of the test set, in the order written), \
            `against_row`, `against_id`, `by` (`ngram`, `minhash` or `vectors`), the shared `ngram`, and `similarity`.";
        let mut ports = Ports::new()
            .any_rows_in(ROWS, "The rows to check.")
            .input_of(AGAINST, Accept::AnyRows, Arity::Many, "Test sets.")
            .same_out(ROWS, ROWS, "The rows without matches, or all rows with `mark`, in input order.")
            .rows_out(MATCHES, RecordKind::Table, matches)
            .tree_out("report", TreeKind::Report, "`report.html`: matches by test set, and the first ones in full.");
        if params.vectors.is_some() {
            let (accept, about) = (Accept::Tree(TreeKind::Index), "Dense indexes of the test sets, in their order.");
            ports = ports.input_of(INDEX, accept.clone(), Arity::One, "A dense index of the rows.");
            ports = ports.input_of(AGAINST_INDEX, accept, Arity::Many, about);
        }
        let given = params.clone();
        let mut declaration = Declaration::pure(ports).issues(issues(params));
        if params.vectors.is_some() {
            declaration = declaration.checks_variants(INDEX, |kinds| Cosine::kind_issues("vectors", kinds));
        }
        declaration.checks_columns(move |tables| {
            let (columns, of_tests) = (&given.columns, given.columns_of_tests());
            let rows = columns_checked(tables, ROWS, |schema| Texts::new(schema, "columns", columns));
            let tests = columns_checked(tables, AGAINST, |schema| Texts::new(schema, "against_columns", of_tests));
            rows.into_iter().chain(tests).collect()
        })
    }

    fn open(params: &DecontaminateParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &DecontaminateParams) -> Vec<ParamIssue> {
    let mut issues = column_issues("columns", &params.columns);
    if !params.against_columns.is_empty() {
        issues.extend(column_issues("against_columns", &params.against_columns));
    }
    if params.min_words == 0 {
        issues.push(ParamIssue::new("min_words", "must be at least 1"));
    }
    issues.extend(params.minhash.iter().flat_map(|minhash| minhash.issues("minhash")));
    issues.extend(params.vectors.iter().flat_map(|vectors| vectors.issues("vectors")));
    if params.ngram == 0 && params.minhash.is_none() && params.vectors.is_none() {
        issues.push(ParamIssue::new("ngram", "nothing is compared").with_help("write `minhash: {}`, or 1 or more"));
    }
    issues
}

impl BlockingKernel for DecontaminateParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let index = self.index(inputs, context)?;
        let rows = inputs.rows(ROWS)?;
        let texts = Texts::new(&rows.schema, "columns", &self.columns)?;
        let vectors = self.vectors.map(|vectors| ByVectors::new(vectors.threshold, inputs, &index, context));
        let vectors = vectors.transpose()?;
        let mut report = Report::new(&index);
        // Empty tables first: an input without rows has outputs with columns.
        outputs.write(ROWS, &self.retained(&RecordBatch::new_empty(Arc::clone(&rows.schema)), &[])?)?;
        outputs.write(MATCHES, &matches::batch(&[], &index)?)?;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            // The index is only read; which test rows were found is noted in atomics.
            let mut found: Vec<Vec<Found>> = texts.of(&batch)?.par_iter().map(|text| index.find(text)).collect();
            if let Some(vectors) = &vectors {
                vectors.find(&batch, &mut found)?;
            }
            outputs.write(ROWS, &self.retained(&batch, &found)?)?;
            let listed = report.add(found, id_column(&batch).as_ref(), &index);
            outputs.write(MATCHES, &matches::batch(&listed, &index)?)?;
        }
        report.write(&index, outputs)
    }
}

impl DecontaminateParams {
    fn columns_of_tests(&self) -> &[String] {
        if self.against_columns.is_empty() { &self.columns } else { &self.against_columns }
    }

    /// Reads the test sets.
    fn index(&self, inputs: &Inputs, context: &Context) -> Result<TestsIndex, OperatorError> {
        let columns = self.columns_of_tests();
        let mut index = TestsIndex::new(self.ngram, self.min_words, self.minhash.as_ref());
        // A test row that is too short for n-grams still has a vector.
        index.compares_all = self.vectors.is_some();
        for artifact in inputs.many(AGAINST) {
            let InputArtifact::Rows(rows) = artifact else { continue };
            let texts = Texts::new(&rows.schema, "against_columns", columns)?;
            index.add_set();
            for batch in rows.batches() {
                context.check_cancelled()?;
                let batch = batch?;
                index.add(&texts.of(&batch)?, id_column(&batch).as_ref());
            }
        }
        // Bands are found by a binary search.
        index.finish();
        Ok(index)
    }

    /// Returns the rows of a batch that stay.
    fn retained(&self, batch: &RecordBatch, found: &[Vec<Found>]) -> Result<RecordBatch, OperatorError> {
        if self.mark {
            let marks: BooleanArray = found.iter().map(|found| Some(!found.is_empty())).collect();
            let marks: (Field, ArrayRef) = (Field::new(CONTAMINATED, DataType::Boolean, false), Arc::new(marks));
            return with_columns(batch, vec![marks]);
        }
        let clean: BooleanArray = found.iter().map(|found| Some(found.is_empty())).collect();
        Ok(filter_record_batch(batch, &clean)?)
    }
}
