//! Rows that an operator cannot use.

use searchmill_engine::operator::FailureKind;
use searchmill_schemas::Reject;

/// Reason why an operator cannot use a row.
#[derive(Debug)]
pub(crate) struct Unfit {
    pub(crate) message: String,
    /// The invalid text.
    pub(crate) detail: Option<String>,
}

impl Unfit {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), detail: None }
    }

    /// A row whose golden answers are all empty after normalisation.
    pub(crate) fn of_empty_answers(golden: &[String]) -> Self {
        let message = "every golden answer is empty after normalisation (only punctuation and articles)";
        Self { message: message.to_owned(), detail: Some(golden.join("\n")) }
    }

    /// Returns the reject of the row with this id.
    pub(crate) fn reject(self, id: String) -> Reject {
        let kind = FailureKind::Data.name().to_owned();
        Reject { id, kind, message: self.message, attempts: 1, detail: self.detail }
    }
}
