//! Searches any set of indexes and fuses their rankings.

use rayon::prelude::*;
use searchmill_engine::operator::{Context, OperatorError, TreeInput};
use searchmill_schemas::HitSource;

use super::chunk_store::{ChunkStore, decode};
use super::descriptor::Descriptor;
use super::fuse::{Fused, Ranked, fuse};
use super::{Found, Fusion, Retriever, Row, SearchSettings};

struct OpenIndex {
    name: String,
    retriever: Box<dyn Retriever>,
    chunks: ChunkStore,
    /// Content digest of the chunks, empty if unknown.
    digest: String,
}

/// Opened indexes with search settings, for any number of threads. A query always has the same result, alone or in a
/// batch.
///
/// Chunks of different indexes are equal if everything stored of them is (id, document, title and contents). Chunks of
/// one document that was cut in two ways are therefore never confused.
pub struct Search {
    indexes: Vec<OpenIndex>,
    /// Whether all indexes hold the same chunks in the same order, so that a row number identifies a chunk.
    shared: bool,
    settings: SearchSettings,
}

impl Search {
    /// Opens indexes built by `index`. Their order matters for ties, weights and the sources of hits.
    ///
    /// # Errors
    /// Fails if a folder is not an index, or the fusion does not fit the number of indexes.
    pub fn open(trees: &[&TreeInput], settings: &SearchSettings, context: &Context) -> Result<Self, OperatorError> {
        check_fusion(&settings.fusion, trees.len())?;
        let indexes = trees.iter().enumerate().map(|(place, tree)| {
            let descriptor = Descriptor::read(&tree.path)?;
            Ok(OpenIndex {
                name: format!("{}:{place}", descriptor.kind.name()),
                retriever: descriptor.open(&tree.path, context)?,
                chunks: ChunkStore::open(&tree.path)?,
                digest: descriptor.chunks,
            })
        });
        let indexes = indexes.collect::<Result<Vec<_>, OperatorError>>()?;
        let shared = same_chunks(&indexes)?;
        Ok(Self { indexes, shared, settings: settings.clone() })
    }

    /// Returns the number of chunks in each index.
    pub fn sizes(&self) -> Vec<u32> {
        self.indexes.iter().map(|index| index.chunks.rows()).collect()
    }

    /// Returns the best chunks for a query, best first. A query without a searchable word finds nothing in a BM25
    /// index.
    ///
    /// # Errors
    /// Fails if an index cannot be read.
    pub fn search(&self, query: &str) -> Result<Vec<Found>, OperatorError> {
        Ok(self.search_batch(&[query])?.pop().unwrap_or_default())
    }

    /// Searches many queries together, in their order; faster, with equal results.
    ///
    /// # Errors
    /// Fails if an index cannot be read.
    pub fn search_batch(&self, queries: &[&str]) -> Result<Vec<Vec<Found>>, OperatorError> {
        let pool = self.settings.pool.max(self.settings.top_k);
        let pool = if self.indexes.len() == 1 { self.settings.top_k } else { pool };
        let lists = self.indexes.iter().map(|index| index.retriever.search_batch(queries, pool));
        let lists = lists.collect::<Result<Vec<_>, _>>()?;
        let of_query = |query: usize| self.merge(lists.iter().map(|list| list[query].as_slice()));
        (0..queries.len()).into_par_iter().map(of_query).collect()
    }

    /// Fuses the lists of one query.
    fn merge<'a>(&self, lists: impl Iterator<Item = &'a [Row]>) -> Result<Vec<Found>, OperatorError> {
        if self.shared {
            let lists: Vec<Vec<Ranked<u32>>> = lists.map(|list| list.iter().map(by_row).collect()).collect();
            let fused = fuse(&lists, &self.settings.fusion, self.settings.top_k);
            return fused.into_iter().map(|f| Ok(self.found(self.indexes[0].chunks.chunk(f.key)?, &f))).collect();
        }
        let lists = self.indexes.iter().zip(lists).map(|(index, list)| by_record(&index.chunks, list));
        let lists = lists.collect::<Result<Vec<_>, _>>()?;
        let fused = fuse(&lists, &self.settings.fusion, self.settings.top_k);
        fused.into_iter().map(|f| Ok(self.found(decode(&f.key)?, &f))).collect()
    }

    fn found<K>(&self, chunk: Found, fused: &Fused<K>) -> Found {
        let sources = fused.places.iter().map(|place| HitSource {
            index: self.indexes[place.list].name.clone(),
            rank: place.rank as i32,
            score: place.score,
        });
        Found { score: fused.score, sources: sources.collect(), ..chunk }
    }
}

fn by_row(found: &Row) -> Ranked<u32> {
    Ranked { key: found.row, score: found.score }
}

fn by_record(chunks: &ChunkStore, list: &[Row]) -> Result<Vec<Ranked<Vec<u8>>>, OperatorError> {
    list.iter().map(|found| Ok(Ranked { key: chunks.record(found.row)?, score: found.score })).collect()
}

fn check_fusion(fusion: &Fusion, indexes: usize) -> Result<(), OperatorError> {
    match fusion {
        Fusion::None if indexes > 1 => {
            let message = format!("`fusion: none` takes one index, found {indexes}");
            Err(OperatorError::pipeline(message).with_help("write `fusion: rrf`, or search one index"))
        }
        Fusion::Weighted { weights } if !weights.is_empty() && weights.len() != indexes => {
            let message = format!("found {} fusion weights for {indexes} indexes", weights.len());
            Err(OperatorError::pipeline(message).with_help("write one weight per index, in their order"))
        }
        _ => Ok(()),
    }
}

fn same_chunks(indexes: &[OpenIndex]) -> Result<bool, OperatorError> {
    let Some((first, rest)) = indexes.split_first() else { return Ok(true) };
    for index in rest {
        let known = !index.digest.is_empty() && index.digest == first.digest;
        if !known && !first.chunks.same_as(&index.chunks)? {
            return Ok(false);
        }
    }
    Ok(true)
}
