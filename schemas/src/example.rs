//! `example`: one training example, ready to be written.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, optional, required};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// One training example.
    pub struct Example {
        /// Id of the trajectory (a repeat by `rebalance` has its number after `~`).
        pub id: String,
        /// Trajectory it was converted from.
        pub trajectory_id: Option<String>,
        /// Id of the question.
        pub question_id: String,
        /// Layout of the row: `swift`, `trl`, `openai`, `sharegpt`, `verl`.
        pub format: String,
        /// Row for the trainer: one JSON object, exactly as written to JSONL.
        pub row: String,
        /// Rendered text as the trainer tokenises it, if the format defines it.
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
