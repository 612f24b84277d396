//! `metric`: one aggregated figure with its interval.

use serde::{Deserialize, Serialize};

use crate::described::described;

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// One aggregated figure.
    pub struct Metric {
        /// `<group>/<name>`.
        pub id: String,
        /// Name of the measure (`f1`, `recall@5`, …).
        pub name: String,
        /// Group of rows (`all`, a question type, `baseline:…`).
        pub group: String,
        /// Mean value.
        pub value: f64,
        /// Lower end of the 95 % interval.
        pub low: Option<f64>,
        /// Upper end of the 95 % interval.
        pub high: Option<f64>,
        /// Number of rows.
        pub count: i64,
    }
}
