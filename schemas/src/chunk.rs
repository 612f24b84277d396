//! `chunk`: a piece of a document, the unit of retrieval.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, optional, required};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A piece of a document.
    pub struct Chunk {
        /// Unique in its table: `<document_id>#<position>`.
        pub id: String,
        /// The document it was cut from.
        pub document_id: String,
        /// Place among the document's chunks, from 0.
        pub position: i32,
        /// How many chunks the document has.
        pub document_chunks: i32,
        /// The document's title.
        pub title: Option<String>,
        /// The piece itself.
        pub text: String,
        /// What is indexed and shown to a model: `title + "\n" + text`, or `text` where there is no title.
        pub contents: String,
        /// Byte offset of the piece in the document's text.
        pub start: i64,
        /// Byte offset of its end.
        pub end: i64,
        /// Length in the chunker's unit (tokens, words or characters), title not counted.
        pub tokens: i32,
        /// The document's metadata (JSON object).
        pub metadata: Option<String>,
    }
}

impl Record for Chunk {
    const KIND: RecordKind = RecordKind::Chunk;
}

pub(crate) fn fields() -> Vec<FieldRef> {
    vec![
        required("id", DataType::Utf8),
        required("document_id", DataType::Utf8),
        required("position", DataType::Int32),
        required("document_chunks", DataType::Int32),
        optional("title", DataType::Utf8),
        required("text", DataType::Utf8),
        required("contents", DataType::Utf8),
        required("start", DataType::Int64),
        required("end", DataType::Int64),
        required("tokens", DataType::Int32),
        optional("metadata", DataType::Utf8),
    ]
}
