//! Late interaction: the vectors of all tokens of a text, compared with those of a query (Khattab and Zaharia 2020,
//! arXiv:2004.12832).
//!
//! A score is the exact MaxSim over the stored vectors. Nothing is pruned: with `candidates`, every candidate is scored,
//! without, every chunk. A score depends on the query and the chunk alone, to the last bit.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue, RowsInput, allow_names, named_or_tagged};
use searchmill_kernels::maxsim::Query;
use searchmill_models::{ColbertEncoder, Role, TokenEncoderParams};
use serde::{Deserialize, Serialize};

use super::chunk_store::ChunkWriter;
use super::passages::{Coder, encode_all};
use super::token_store::{Scratch, Storage, TokenStore, TokenWriter, push_record, split_record};
use super::{Lists, Retriever, Row};

const ENCODER: &str = "encoder";
/// Rows that lie next to each other and are read together, at most.
const RUN: u32 = 32;
/// Queries that are compared with every chunk in one pass over the chunks.
const TOGETHER: usize = 32;

/// Options of a late-interaction index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct LateParams {
    /// The encoder of tokens: `colbert: {model: …}`.
    pub encoder: TokenEncoderParams,
    /// How the vectors are stored: `fp16`, or `residual` (much smaller, nearly as good).
    #[serde(default, deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub storage: Storage,
}

impl LateParams {
    /// Validates the params; `path` is their position below `with:`.
    pub fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = self.encoder.check(&format!("{path}.encoder"));
        if matches!(self.storage, Storage::Residual { bits } if ![1, 2, 4].contains(&bits)) {
            issues.push(ParamIssue::new(format!("{path}.storage.residual.bits"), "bits must be 1, 2 or 4"));
        }
        issues
    }
}

/// A record is the number of a passage's tokens and their vectors in 16-bit floats.
impl Coder for ColbertEncoder {
    fn group_bytes(&self) -> Option<usize> {
        Some(Self::group_bytes(self))
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<u8>, OperatorError> {
        let mut records = Vec::new();
        for vectors in Self::encode(self, texts, Role::Passage)? {
            push_record(&vectors, self.dimensions(), &mut records);
        }
        Ok(records)
    }

    fn length(&self, records: &[u8], count: usize) -> Option<usize> {
        let mut rest = records;
        for _ in 0..count {
            rest = split_record(rest, self.dimensions())?.1;
        }
        Some(records.len() - rest.len())
    }
}

/// Encodes and indexes the chunks into `folder` and stores them in `chunks`.
pub(crate) fn build(
    params: &LateParams,
    rows: &RowsInput,
    folder: &Path,
    chunks: &mut ChunkWriter,
    context: &Context,
) -> Result<(), OperatorError> {
    let encoder_folder = folder.join(ENCODER);
    // The index holds its encoder: it can be searched when the model's folder is gone.
    params.encoder.keep(&encoder_folder, context)?;
    let encoder = params.encoder.open(&encoder_folder, context)?;
    let mut writer = TokenWriter::create(folder, encoder.dimensions())?;
    encode_all(&encoder, rows, chunks, context, |records| {
        let mut rest = records.as_slice();
        while let Some((vectors, others)) = split_record(rest, encoder.dimensions()) {
            writer.write(vectors)?;
            rest = others;
        }
        Ok(())
    })?;
    let tokens = writer.finish(params.storage, context)?;
    context.progress().log(&format!("{tokens} token vectors of {} chunks", rows.rows));
    Ok(())
}

/// An opened late-interaction index.
pub(crate) struct LateIndex {
    encoder: ColbertEncoder,
    store: TokenStore,
}

impl LateIndex {
    /// Opens an index written by [`build`].
    pub(crate) fn open(params: &LateParams, folder: &Path, context: &Context) -> Result<Self, OperatorError> {
        let encoder = params.encoder.open(&folder.join(ENCODER), context)?;
        let store = TokenStore::open(folder, params.storage)?;
        if store.dimensions() != encoder.dimensions() {
            let message =
                format!("the index has {} dimensions, the encoder has {}", store.dimensions(), encoder.dimensions());
            return Err(OperatorError::data(message).with_help("rerun the `index` node"));
        }
        Ok(Self { encoder, store })
    }

    fn queries(&self, queries: &[&str]) -> Result<Vec<Query>, OperatorError> {
        let vectors = self.encoder.encode(queries, Role::Query)?;
        Ok(vectors.iter().map(|vectors| Query::new(vectors, self.store.dimensions())).collect())
    }

    /// Scores the rows of each run with all queries. Returns the best rows of each query.
    fn score(&self, queries: &[Query], runs: &[Range<u32>], pool: usize) -> Result<Lists, OperatorError> {
        // A run's vectors are read once for all queries.
        let scored = runs.par_iter().map_init(Scratch::default, |scratch, run| {
            let mut scored: Lists = vec![Vec::with_capacity(run.len()); queries.len()];
            self.store.each(run.clone(), scratch, |row, vectors| {
                for (query, scored) in queries.iter().zip(&mut scored) {
                    scored.push(Row { row, score: query.score(vectors) });
                }
            })?;
            Ok(scored)
        });
        let scored: Vec<Lists> = scored.collect::<Result<_, OperatorError>>()?;
        let lists = (0..queries.len()).into_par_iter().map(|query| {
            // A query without tokens scores every chunk 0: it finds nothing.
            if queries[query].is_empty() {
                return Vec::new();
            }
            best(scored.iter().flat_map(|run| &run[query]).copied().collect(), pool)
        });
        Ok(lists.collect())
    }
}

impl Retriever for LateIndex {
    fn search_batch(&self, queries: &[&str], pool: usize) -> Result<Lists, OperatorError> {
        let queries = self.queries(queries)?;
        let rows = self.store.rows();
        let all: Vec<Range<u32>> = (0..rows).step_by(RUN as usize).map(|row| row..(row + RUN).min(rows)).collect();
        let mut lists = Vec::with_capacity(queries.len());
        // In groups: the scores of all chunks with all queries could fill the memory.
        for queries in queries.chunks(TOGETHER) {
            lists.extend(self.score(queries, &all, pool)?);
        }
        Ok(lists)
    }

    fn rank_batch(&self, queries: &[&str], candidates: &[Vec<u32>], pool: usize) -> Result<Lists, OperatorError> {
        let queries = self.queries(queries)?;
        // Each query alone: it has candidates of its own.
        let lists = queries.par_iter().zip(candidates).map(|(query, rows)| {
            Ok(self.score(std::slice::from_ref(query), &runs(rows), pool)?.pop().unwrap_or_default())
        });
        lists.collect()
    }
}

/// Joins neighbouring rows.
fn runs(rows: &[u32]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for row in rows {
        match runs.last_mut() {
            Some(run) if run.end == *row && run.len() < RUN as usize => run.end += 1,
            _ => runs.push(*row..row + 1),
        }
    }
    runs
}

/// Returns the best `pool` rows, best first, ties by row.
fn best(mut rows: Vec<Row>, pool: usize) -> Vec<Row> {
    fn order(a: &Row, b: &Row) -> std::cmp::Ordering {
        b.score.total_cmp(&a.score).then(a.row.cmp(&b.row))
    }
    // Selecting first: sorting all rows of a large index would take longer than scoring some.
    if pool < rows.len() {
        rows.select_nth_unstable_by(pool, order);
        rows.truncate(pool);
    }
    rows.sort_unstable_by(order);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_rows_are_read_together() {
        assert_eq!(runs(&[1, 2, 3, 7, 9, 10]), [1..4, 7..8, 9..11]);
        let many: Vec<u32> = (0..RUN + 3).collect();
        assert_eq!(runs(&many), [0..RUN, RUN..RUN + 3]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn ties_go_to_the_earlier_row() {
        let row = |(row, score)| Row { row, score };
        let rows = [(4, 1.0), (1, 2.0), (3, 1.0), (2, 1.0)].map(row);
        let found: Vec<u32> = best(rows.to_vec(), 3).iter().map(|row| row.row).collect();
        assert_eq!(found, [1, 2, 3]);
        assert_eq!(best(rows.to_vec(), 9).len(), 4);
        assert!(best(rows.to_vec(), 0).is_empty());
    }
}
