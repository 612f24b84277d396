//! `metric`: one aggregated figure with its interval.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, optional, required};

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

impl Record for Metric {
    const KIND: RecordKind = RecordKind::Metric;
}

pub(crate) fn fields() -> Vec<FieldRef> {
    vec![
        required("id", DataType::Utf8),
        required("name", DataType::Utf8),
        required("group", DataType::Utf8),
        required("value", DataType::Float64),
        optional("low", DataType::Float64),
        optional("high", DataType::Float64),
        required("count", DataType::Int64),
    ]
}
