//! `hit`: one retrieved chunk for one query.

use serde::{Deserialize, Serialize};

use crate::described::described;

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
