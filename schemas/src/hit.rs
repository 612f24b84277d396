//! `hit`: one retrieved chunk for one query.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::record::{Record, RecordKind, list_of, optional, required, struct_of};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// One retrieved chunk for one query.
    pub struct Hit {
        /// `<question_id>@<rank>`.
        pub id: String,
        /// Id of the question.
        pub question_id: String,
        /// Text that was searched for.
        pub query: String,
        /// Rank in the fused list, from 1.
        pub rank: i32,
        /// Fused score; the index's own score without fusion.
        pub score: f64,
        /// Id of the chunk.
        pub chunk_id: String,
        /// Id of its document.
        pub document_id: String,
        /// Title of its document.
        pub title: Option<String>,
        /// Contents of the chunk, as indexed.
        pub contents: String,
        /// Indexes that returned it: one entry per index.
        pub sources: Vec<HitSource>,
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// How one index ranked a hit.
    pub struct HitSource {
        /// `<kind>:<position among the indexes, from 0>`, for example `bm25:0`.
        pub index: String,
        /// Rank in that index, from 1.
        pub rank: i32,
        /// Score in that index.
        pub score: f64,
    }
}

impl Record for Hit {
    const KIND: RecordKind = RecordKind::Hit;
}

pub(crate) fn fields() -> Vec<FieldRef> {
    let sources = list_of(struct_of(vec![
        required("index", DataType::Utf8),
        required("rank", DataType::Int32),
        required("score", DataType::Float64),
    ]));
    vec![
        required("id", DataType::Utf8),
        required("question_id", DataType::Utf8),
        required("query", DataType::Utf8),
        required("rank", DataType::Int32),
        required("score", DataType::Float64),
        required("chunk_id", DataType::Utf8),
        required("document_id", DataType::Utf8),
        optional("title", DataType::Utf8),
        required("contents", DataType::Utf8),
        required("sources", sources),
    ]
}
