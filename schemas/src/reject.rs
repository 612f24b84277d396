//! `reject`: a row that failed, with the reason. Rejects are data: counted, shown, and retried.

use serde::{Deserialize, Serialize};

use crate::described::described;

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
