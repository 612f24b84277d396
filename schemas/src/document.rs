//! `document`: a text with an id and a title.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, optional, required};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A text with an id and a title.
    pub struct Document {
        /// Unique in its table.
        pub id: String,
        /// Title, without markup.
        pub title: Option<String>,
        /// Body, without the title.
        pub text: String,
        /// All other fields of the source, as a JSON object.
        pub metadata: Option<String>,
    }
}

impl Record for Document {
    const KIND: RecordKind = RecordKind::Document;
}

pub(crate) fn fields() -> Vec<FieldRef> {
    vec![
        required("id", DataType::Utf8),
        optional("title", DataType::Utf8),
        required("text", DataType::Utf8),
        optional("metadata", DataType::Utf8),
    ]
}
