//! `score`: the answer metrics of one trajectory.

use serde::{Deserialize, Serialize};

use crate::described::described;

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// The answer metrics of one trajectory, each from 0 to 1.
    pub struct Score {
        /// Id of the trajectory.
        pub id: String,
        /// Id of the trajectory.
        pub trajectory_id: String,
        /// Id of the question.
        pub question_id: String,
        /// Number of the sample.
        pub sample_index: i32,
        /// The question's type.
        pub question_type: Option<String>,
        /// Predicted answer.
        pub prediction: String,
        /// Accepted answers.
        pub golden_answers: Vec<String>,
        /// Exact match.
        pub em: f64,
        /// Token F1.
        pub f1: f64,
        /// Whether a golden answer is a substring of the prediction, as 0 or 1.
        pub acc: f64,
        /// Token precision.
        pub precision: f64,
        /// Token recall.
        pub recall: f64,
        /// Whether F1 reached the success threshold.
        pub success: bool,
        /// Whether an observation showed a gold document (any chunk of it), a gold fact or the answer.
        pub grounded: bool,
    }
}
