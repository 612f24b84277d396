//! `example`: one training example, ready to be written.

use serde::{Deserialize, Serialize};

use crate::described::described;

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
