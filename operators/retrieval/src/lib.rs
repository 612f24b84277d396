//! Search indexes: `index` builds them; `retrieve` and `rollout` search them through [`Search`].
//!
//! An index is a folder: `index.json` (its kind: [`descriptor`]), the chunks by row ([`chunk_store`]), and the files of
//! its kind ([`bm25`], [`dense`], [`late`]). [`Search`] queries any set of indexes and fuses the rankings ([`fuse`]). An
//! opened index is never changed: searches take no locks on files and write nothing.
//!
//! Faiss does the training, the files, the graphs and the exact scores. Its matrix products go through `blas`, which
//! defines BLAS's `sgemm_` with the library that the encoders use: a distribution's BLAS may not know the processor.
//! `flat` scans flat vectors and the cells of `IVF…` indexes. Faiss then scores the few candidate rows, so the last
//! bits do not depend on the batch, the threads or the vector unit.
//!
//! `postings` caches unpacked BM25 lists (at most 128 MB).

mod blas;
mod bm25;
mod chunk_store;
mod dense;
mod descriptor;
mod faiss_index;
mod flat;
mod fuse;
mod late;
#[cfg(test)]
mod late_tests;
mod maxscore;
mod memory;
mod passages;
mod postings;
mod query_cache;
mod search;
mod statistics;
mod token_store;
mod vectors;

use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue, allow_names, named_or_tagged};
use searchmill_schemas::HitSource;
use serde::{Deserialize, Serialize};

pub use bm25::Bm25Params;
pub use dense::DenseParams;
pub use descriptor::{IndexKind, build};
pub use faiss_index::{FaissIndex, Metric, Neighbours};
pub use fuse::Fusion;
pub use late::LateParams;
pub use memory::memory_need;
pub use search::{Numbered, Search};
pub use token_store::Storage;
pub use vectors::{IndexVectors, Pair};

/// Name of the kind of index that ranks candidates.
const LATE: &str = "late";

/// How indexes are searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct SearchSettings {
    /// Chunks returned per query, at most.
    #[serde(default = "default_top_k")]
    pub top_k: usize,
    /// Chunks taken from each index before fusion (at least `top_k`).
    #[serde(default = "default_pool")]
    pub pool: usize,
    /// How the rankings of several indexes are fused: `rrf` (reciprocal ranks, k = 60), `weighted`, `concat` or `none`.
    #[serde(default, deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub fusion: Fusion,
    /// Number of chunks from each other index that a `late` index ranks, at least `top_k` (0: it compares the query
    /// with every chunk). All indexes must be built from the same chunks. With `fusion: none`, the ranking of the
    /// `late` index is the result.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub candidates: usize,
}

/// Whether a number is left out of the params, as `skip_serializing_if` asks.
pub fn is_zero(number: &usize) -> bool {
    *number == 0
}

pub fn default_top_k() -> usize {
    5
}

pub fn default_pool() -> usize {
    50
}

impl Default for SearchSettings {
    fn default() -> Self {
        Self { top_k: default_top_k(), pool: default_pool(), fusion: Fusion::default(), candidates: 0 }
    }
}

impl SearchSettings {
    /// Validates the settings; `path` is their position below `with:` (empty, or ending in a dot).
    pub fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        if self.top_k == 0 {
            issues.push(ParamIssue::new(format!("{path}top_k"), "top_k must be at least 1"));
        }
        if let Fusion::Weighted { weights } = &self.fusion
            && let Some(index) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0)
        {
            let at = format!("{path}fusion.weighted.weights.{index}");
            issues.push(ParamIssue::new(at, "a weight must be a number >= 0"));
        }
        issues
    }

    /// Validates the settings for indexes of these kinds (`None`: unknown); `path` as in [`SearchSettings::check`].
    pub fn check_kinds(&self, path: &str, kinds: &[Option<&str>]) -> Vec<ParamIssue> {
        // An unknown kind may be any; opening the indexes checks again.
        if kinds.is_empty() || kinds.contains(&None) {
            return Vec::new();
        }
        let rank = kinds.iter().filter(|kind| **kind == Some(LATE)).count();
        let issue = self.fusion_issue(kinds.len(), rank);
        issue.map(|issue| ParamIssue { path: format!("{path}{}", issue.path), ..issue }).into_iter().collect()
    }

    /// Returns what does not fit a search of `indexes`, of which `rank` rank candidates.
    fn fusion_issue(&self, indexes: usize, rank: usize) -> Option<ParamIssue> {
        if self.candidates > 0 && (rank == 0 || rank == indexes) {
            let message = "`candidates` needs a `late` index and another one that finds candidates";
            let help = "write `search: [bm25, late]`, or leave `candidates` out";
            return Some(ParamIssue::new("candidates", message).with_help(help));
        }
        match &self.fusion {
            Fusion::None if self.candidates > 0 && rank == 1 => None,
            Fusion::None if indexes > 1 => {
                let message = format!("`fusion: none` takes one index, found {indexes}");
                let help =
                    "write `fusion: rrf`, search one index, or let one `late` index rank `candidates` of the others";
                Some(ParamIssue::new("fusion", message).with_help(help))
            }
            Fusion::Weighted { weights } if !weights.is_empty() && weights.len() != indexes => {
                let message = format!("found {} fusion weights for {indexes} indexes", weights.len());
                let help = "write one weight per index, in their order";
                Some(ParamIssue::new("fusion.weighted.weights", message).with_help(help))
            }
            _ => None,
        }
    }
}

/// A chunk found for a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Id of the chunk.
    pub chunk_id: String,
    /// Id of its document.
    pub document_id: String,
    /// Title of its document.
    pub title: Option<String>,
    /// Contents as indexed.
    pub contents: String,
    /// Fused score, or the index's own score without fusion.
    pub score: f64,
    /// Rank and score from each index that returned it, in the order of the indexes.
    pub sources: Vec<HitSource>,
}

impl Found {
    /// Returns title and text. Indexed contents begin with a line for the title if the chunk has one.
    pub fn parts(&self) -> (&str, &str) {
        let contents = self.contents.trim();
        let title = self.title.as_deref().map_or("", str::trim);
        match contents.split_once('\n') {
            Some((first, text)) if title.is_empty() || first.trim().trim_matches('"') == title.trim_matches('"') => {
                (first.trim(), text.trim())
            }
            _ => (title, contents),
        }
    }
}

/// A row of an index and its score (higher is better).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub row: u32,
    pub score: f64,
}

/// Rows for each query, best first.
pub(crate) type Lists = Vec<Vec<Row>>;

/// An index that can be searched. Results do not depend on how queries are batched or on the number of threads.
pub(crate) trait Retriever: Send + Sync {
    /// Returns at most `pool` rows for each query, best first, ties by row number.
    fn search_batch(&self, queries: &[&str], pool: usize) -> Result<Lists, OperatorError>;

    /// Ranks given rows for each query, in increasing order without repetitions. Only indexes of kinds that rank
    /// candidates are asked.
    fn rank_batch(&self, _queries: &[&str], _candidates: &[Vec<u32>], _pool: usize) -> Result<Lists, OperatorError> {
        Err(OperatorError::engine("this kind of index ranks no candidates"))
    }
}

/// Computes something for each query, in order: many in parallel, a single one on this thread, because handing it to
/// another one takes longer than a search of words.
pub(crate) fn each_query<T: Send>(
    queries: usize,
    of_query: impl Fn(usize) -> Result<T, OperatorError> + Sync + Send,
) -> Result<Vec<T>, OperatorError> {
    match queries {
        1 => Ok(vec![of_query(0)?]),
        _ => (0..queries).into_par_iter().map(of_query).collect(),
    }
}
