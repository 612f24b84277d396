//! Whether rows that a program wrote fit their record kind.

use arrow::array::RecordBatch;
use searchmill_data::program::Passed;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::RecordKind;

use crate::shared::columns::conformed;

/// Returns the rows with the kind's columns first. `output`: the table of `outputs`; `None` for rows on stdout.
///
/// # Errors
/// If columns are missing or have other types, or contain a secret.
pub(super) fn checked(
    output: Option<&str>,
    kind: RecordKind,
    batch: &RecordBatch,
    passed: &Passed,
) -> Result<RecordBatch, OperatorError> {
    passed.check(batch)?;
    conformed(kind, batch).map_err(|error| match output {
        None => OperatorError::pipeline(format!("the program's output does not fit `as: {kind}`: {error}"))
            .with_help("fix the program's schema, or set `as:` to the kind that it writes"),
        Some(name) => OperatorError::pipeline(format!("output `{name}`: its rows are no {kind} rows: {error}"))
            .with_help(format!("fix the program's schema, or write the kind of its rows: `outputs: {{{name}: …}}`")),
    })
}
