//! Checking what an external operator recorded, without asking the outside again.

use arrow::array::RecordBatch;

use super::error::OperatorError;

/// Derives again what in an operator's recorded rows follows from its inputs and params alone.
pub trait Recheck: Send + Sync {
    /// The output port whose rows it checks.
    fn port(&self) -> &str;

    /// Checks recorded rows.
    ///
    /// # Errors
    /// When an input cannot be read.
    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError>;
}

/// What came of checking rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rechecked {
    /// How many things were derived again.
    pub compared: u64,
    /// Of these, the ones that are not as recorded.
    pub differences: Vec<RowDifference>,
}

/// Something in a recorded row that is not what its inputs give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowDifference {
    /// Id of the row.
    pub row: String,
    /// What differs, in words: `turn 4, text of the tool's answer`.
    pub what: String,
    /// As recorded.
    pub recorded: String,
    /// As derived.
    pub derived: String,
}
