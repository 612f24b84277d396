//! The comparison of two tables outside of a run, as one page: for `diff --report`.

use std::path::PathBuf;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{Context, InputArtifact, Inputs, OperatorError, OutputSink, RowsInput};

use super::params::CompareParams;

/// Keeps the report, and nothing else.
struct ReportAlone {
    folder: PathBuf,
}

impl OutputSink for ReportAlone {
    fn write(&mut self, _port: &str, _batch: &RecordBatch) -> Result<(), OperatorError> {
        Ok(())
    }

    fn tree(&mut self, _port: &str) -> Result<PathBuf, OperatorError> {
        Ok(self.folder.clone())
    }

    fn figure(&mut self, _name: &str, _value: f64) {}

    fn summary(&mut self, _text: &str) {}
}

/// Two tables of rollouts or scores to compare, with what is known about them.
pub struct ComparedTables<'a> {
    /// Heading.
    pub title: &'a str,
    /// What is said before the figures, a line each.
    pub about: &'a [String],
    /// Names of the tables, the baseline first.
    pub names: [&'a str; 2],
    /// The tables.
    pub rows: [RowsInput; 2],
}

/// Compares two tables by F1 as the operator `compare` does, and returns the page.
///
/// # Errors
/// Fails if the rows have no questions or answers to compare, or cannot be read.
pub fn compared_page(compared: &ComparedTables<'_>, context: &Context) -> Result<String, OperatorError> {
    let [base, other] = compared.names;
    let params = CompareParams { base: base.to_owned(), title: compared.title.to_owned(), ..CompareParams::default() };
    let mut inputs = Inputs::new();
    for (name, rows) in [base, other].into_iter().zip(&compared.rows) {
        inputs.bind(name, InputArtifact::Rows(rows.clone()));
    }
    // `compare` writes its report as a file; the folder is removed when `folder` is dropped, after the page was read.
    let folder = tempfile::tempdir()?;
    let mut report = ReportAlone { folder: folder.path().to_owned() };
    params.compare(compared.about, &inputs, &mut report, context)?;
    let page = folder.path().join("report.html");
    std::fs::read_to_string(&page)
        .map_err(|error| OperatorError::machine(format!("cannot read {}: {error}", page.display())))
}
