//! `reject`: a row that failed, with the reason. Rejects are data: counted, shown, and retried.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, optional, required};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A row that failed.
    pub struct Reject {
        /// Id of the failed row, or `<source>:<line>` if it was never parsed.
        pub id: String,
        /// Kind of failure: `timeout`, `rate_limited`, `server_error`, `bad_response`, `bad_line`, …
        pub kind: String,
        /// Error message.
        pub message: String,
        /// Number of attempts.
        pub attempts: i32,
        /// The row, the line or the last response, if known.
        pub detail: Option<String>,
    }
}

impl Record for Reject {
    const KIND: RecordKind = RecordKind::Reject;
}

pub(crate) fn fields() -> Vec<FieldRef> {
    vec![
        required("id", DataType::Utf8),
        required("kind", DataType::Utf8),
        required("message", DataType::Utf8),
        required("attempts", DataType::Int32),
        optional("detail", DataType::Utf8),
    ]
}
