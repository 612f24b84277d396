//! Checks of recorded external results, without external calls.

use arrow::array::RecordBatch;

use crate::error::OperatorError;

/// Derives the part of an operator's recorded rows again that follows from its inputs and params alone.
pub trait Recheck: Send + Sync {
    /// Returns the output port whose rows it checks.
    fn port(&self) -> &str;

    /// Checks recorded rows.
    ///
    /// # Errors
    /// Fails if an input cannot be read.
    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError>;
}

/// The outcome of checking rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rechecked {
    /// Number of values derived again.
    pub compared: u64,
    /// Number of observations of services: they cannot be derived again and are taken from the record.
    pub taken: u64,
    /// Values that differ from the record.
    pub differences: Vec<RowDifference>,
}

/// A value in a recorded row that differs from the derived one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowDifference {
    /// Id of the row.
    pub row: String,
    /// The value: `turn 4, text of the tool's answer`.
    pub what: String,
    /// The recorded value.
    pub recorded: String,
    /// The derived value.
    pub derived: String,
}
