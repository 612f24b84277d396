//! `question`: a question with golden answers and the evidence that supports them.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, list_of, optional, required, struct_of};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A question with golden answers and evidence.
    pub struct Question {
        /// Unique in its table.
        pub id: String,
        /// The question's text.
        pub question: String,
        /// Accepted answers; metrics take the best over them. May be empty: answers to such a question are not scored.
        pub golden_answers: Vec<String>,
        /// The data set's own type (`comparison`, `bridge`, …).
        pub question_type: Option<String>,
        /// What supports the answer; empty where nothing does (null questions) or nothing is known.
        pub evidence: Vec<Evidence>,
        /// Everything else the source said, as a JSON object.
        pub metadata: Option<String>,
    }
}

described! {
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    /// One piece of gold evidence. At least one of the three is known.
    pub struct Evidence {
        /// Id of the supporting document, where the data set has ids.
        pub document_id: Option<String>,
        /// Title of the supporting document.
        pub title: Option<String>,
        /// The supporting sentence, as it stands in the document.
        pub fact: Option<String>,
    }
}

impl Record for Question {
    const KIND: RecordKind = RecordKind::Question;
}

pub(crate) fn evidence_type() -> DataType {
    list_of(struct_of(vec![
        optional("document_id", DataType::Utf8),
        optional("title", DataType::Utf8),
        optional("fact", DataType::Utf8),
    ]))
}

pub(crate) fn fields() -> Vec<FieldRef> {
    vec![
        required("id", DataType::Utf8),
        required("question", DataType::Utf8),
        required("golden_answers", list_of(DataType::Utf8)),
        optional("question_type", DataType::Utf8),
        required("evidence", evidence_type()),
        optional("metadata", DataType::Utf8),
    ]
}
