//! `pair`: two rollouts of a question, one better than the other.

use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::trajectory::Trajectory;

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// Two rollouts of a question, one better than the other.
    pub struct Pair {
        /// Id of the chosen rollout.
        pub id: String,
        /// Id of the question (of the group, if the rollouts were grouped by something else).
        pub question_id: String,
        /// Id of the chosen rollout.
        pub chosen_id: String,
        /// Id of the rejected rollout.
        pub rejected_id: String,
        /// What the chosen rollout was ranked by first, if it is a number.
        pub chosen_score: Option<f64>,
        /// What the rejected rollout was ranked by first, if it is a number.
        pub rejected_score: Option<f64>,
        /// Difference of the two scores, never negative.
        pub margin: Option<f64>,
        /// The better rollout.
        pub chosen: Trajectory,
        /// The worse rollout.
        pub rejected: Trajectory,
    }
}
