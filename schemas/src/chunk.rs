//! `chunk`: a piece of a document, the unit of retrieval.

use serde::{Deserialize, Serialize};

use crate::described::described;

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A piece of a document.
    pub struct Chunk {
        /// Unique in its table: `<document_id>#<position>`.
        pub id: String,
        /// Document that contains it.
        pub document_id: String,
        /// Position among the document's chunks, from 0.
        pub position: i32,
        /// Number of chunks of the document.
        pub document_chunks: i32,
        /// The document's title.
        pub title: Option<String>,
        /// Text of the chunk.
        pub text: String,
        /// Text that is indexed and shown to a model: `title + "\n" + text`, or `text` without a title.
        pub contents: String,
        /// Byte offset of the start in the document's text.
        pub start: i64,
        /// Byte offset of the end.
        pub end: i64,
        /// Length in the chunker's unit (tokens, words or characters), without the title.
        pub tokens: i32,
        /// The document's metadata (JSON object).
        pub metadata: Option<String>,
    }
}
