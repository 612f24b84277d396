//! `example`: one training example, ready to be written.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, optional, required};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// One training example.
    pub struct Example {
        /// The trajectory's id (with the repeat's number after `~` where rebalancing repeated it).
        pub id: String,
        /// The trajectory it was made from.
        pub trajectory_id: Option<String>,
        /// The question.
        pub question_id: String,
        /// Layout of the row: `swift`, `trl`, `openai`, `sharegpt`, `verl`.
        pub format: String,
        /// The row as the trainer reads it: one JSON object, exactly as it is written to JSONL.
        pub row: String,
        /// Rendered text as the trainer will tokenise it, where the format fixes it.
        pub text: Option<String>,
    }
}

impl Record for Example {
    const KIND: RecordKind = RecordKind::Example;
}

pub(crate) fn fields() -> Vec<FieldRef> {
    vec![
        required("id", DataType::Utf8),
        optional("trajectory_id", DataType::Utf8),
        required("question_id", DataType::Utf8),
        required("format", DataType::Utf8),
        required("row", DataType::Utf8),
        optional("text", DataType::Utf8),
    ]
}
