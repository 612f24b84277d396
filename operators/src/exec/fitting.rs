//! Whether rows that a program wrote fit their record kind.

use arrow::array::RecordBatch;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::RecordKind;

use crate::columns::conformed;

/// Returns the rows with the kind's columns first.
///
/// # Errors
/// If columns are missing or have other types.
pub(super) fn checked(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    conformed(kind, batch).map_err(|error| {
        OperatorError::pipeline(format!("the program's output does not fit `as: {kind}`: {error}"))
            .with_help("fix the program's schema, or set `as:` to the kind that it writes")
    })
}
