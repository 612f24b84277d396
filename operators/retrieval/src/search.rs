//! Searches any set of indexes and fuses their rankings.

use std::collections::BTreeSet;

use searchmill_engine::operator::{Context, OperatorError, TreeInput};
use searchmill_schemas::HitSource;

use super::chunk_store::{ChunkStore, decode};
use super::descriptor::{Descriptor, IndexKind};
use super::fuse::{Fused, Ranked, fuse};
use super::{Found, Fusion, Lists, Retriever, Row, SearchSettings, each_query};

struct OpenIndex {
    name: String,
    retriever: Box<dyn Retriever>,
    /// Whether it can rank rows that others found.
    ranks: bool,
    chunks: ChunkStore,
    /// Content digest of the chunks, empty if unknown.
    digest: String,
}

/// A found chunk with its number.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbered {
    /// Row of the chunk in the indexes, counted from 0. Indexes with different chunks are counted one after the other;
    /// the first index that returned the chunk decides.
    pub number: u64,
    /// The chunk.
    pub found: Found,
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
        let mut indexes = Vec::with_capacity(trees.len());
        for (position, tree) in trees.iter().enumerate() {
            let descriptor = Descriptor::read(&tree.path)?;
            indexes.push(OpenIndex {
                // With the position: two indexes of one kind may be searched together.
                name: format!("{}:{position}", descriptor.kind.name()),
                retriever: descriptor.open(&tree.path, context)?,
                ranks: matches!(descriptor.kind, IndexKind::Late(_)),
                chunks: ChunkStore::open(&tree.path)?,
                digest: descriptor.chunks,
            });
        }
        let rank = indexes.iter().filter(|index| index.ranks).count();
        // Checked before the run where the kinds are known; here they always are.
        if let Some(issue) = settings.fusion_issue(indexes.len(), rank) {
            return Err(OperatorError { help: issue.help, ..OperatorError::pipeline(issue.message) });
        }
        let shared = same_chunks(&indexes)?;
        if settings.candidates > 0 && !shared {
            let help = "build the indexes from the same node; without `candidates`, different chunks can be fused";
            return Err(OperatorError::pipeline("`candidates` needs indexes of the same chunks").with_help(help));
        }
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
        let lists = self.search_numbered(queries, self.settings.top_k)?;
        Ok(lists.into_iter().map(|list| list.into_iter().map(|chunk| chunk.found).collect()).collect())
    }

    /// Searches as if `top_k` were the setting, and numbers the chunks.
    ///
    /// # Errors
    /// Fails if an index cannot be read.
    pub fn search_numbered(&self, queries: &[&str], top_k: usize) -> Result<Vec<Vec<Numbered>>, OperatorError> {
        // Fusion needs more than `top_k` of each index: what one ranks lower, another may lift.
        let pool = if self.indexes.len() == 1 { top_k } else { self.settings.pool.max(top_k) };
        let lists = if self.settings.candidates == 0 {
            let lists = self.indexes.iter().map(|index| index.retriever.search_batch(queries, pool));
            lists.collect::<Result<Vec<_>, _>>()?
        } else {
            self.rank_candidates(queries, pool, self.settings.candidates.max(top_k))?
        };
        each_query(queries.len(), |query| {
            let lists: Vec<&[Row]> = lists.iter().map(|list| list[query].as_slice()).collect();
            self.merge(&lists, top_k)
        })
    }

    /// Searches the indexes, those that rank candidates among the best `candidates` rows of each other index. Without
    /// fusion, the others' lists are left out.
    fn rank_candidates(&self, queries: &[&str], pool: usize, candidates: usize) -> Result<Vec<Lists>, OperatorError> {
        let mut lists = vec![Lists::new(); self.indexes.len()];
        for (index, lists) in self.indexes.iter().zip(&mut lists) {
            if !index.ranks {
                *lists = index.retriever.search_batch(queries, pool.max(candidates))?;
            }
        }
        let mut rows: Vec<Vec<u32>> = Vec::with_capacity(queries.len());
        for query in 0..queries.len() {
            // `rank_batch` takes rows in increasing order without repetitions.
            let mut of_query = BTreeSet::new();
            for list in &lists {
                let Some(list) = list.get(query) else { continue };
                of_query.extend(list.iter().take(candidates).map(|row| row.row));
            }
            rows.push(of_query.into_iter().collect());
        }
        let retained = if self.settings.fusion == Fusion::None { 0 } else { pool };
        for (index, lists) in self.indexes.iter().zip(&mut lists) {
            if index.ranks {
                *lists = index.retriever.rank_batch(queries, &rows, pool)?;
                continue;
            }
            for list in lists {
                list.truncate(retained);
            }
        }
        Ok(lists)
    }

    /// Fuses the lists of one query.
    fn merge(&self, lists: &[&[Row]], top_k: usize) -> Result<Vec<Numbered>, OperatorError> {
        let fusion = &self.settings.fusion;
        let mut found = Vec::new();
        if self.shared {
            let mut ranked = Vec::with_capacity(lists.len());
            for list in lists {
                ranked.push(list.iter().map(|row| Ranked { key: row.row, score: row.score }).collect());
            }
            for fused in fuse(&ranked, fusion, top_k) {
                let chunk = self.indexes[0].chunks.chunk(fused.key)?;
                found.push(self.numbered(lists, chunk, &fused));
            }
            return Ok(found);
        }
        // A row number means another chunk in each index: the stored records are compared.
        let mut ranked = Vec::with_capacity(lists.len());
        for (index, list) in self.indexes.iter().zip(lists) {
            let mut records = Vec::with_capacity(list.len());
            for row in *list {
                records.push(Ranked { key: index.chunks.record(row.row)?, score: row.score });
            }
            ranked.push(records);
        }
        for fused in fuse(&ranked, fusion, top_k) {
            found.push(self.numbered(lists, decode(&fused.key)?, &fused));
        }
        Ok(found)
    }

    /// Completes a chunk. Its number is its row in the first index that returned it, after those of the indexes before.
    fn numbered<K>(&self, lists: &[&[Row]], chunk: Found, fused: &Fused<K>) -> Numbered {
        let mut number = 0;
        if let Some(first) = fused.places.first() {
            // Ranks count from 1.
            if let Some(row) = lists[first.list].get(first.rank - 1) {
                number = u64::from(row.row);
            }
            let before = if self.shared { &[] } else { &self.indexes[..first.list] };
            for index in before {
                number += u64::from(index.chunks.rows());
            }
        }
        let mut sources = Vec::with_capacity(fused.places.len());
        for place in &fused.places {
            let index = self.indexes[place.list].name.clone();
            sources.push(HitSource { index, rank: place.rank as i32, score: place.score });
        }
        Numbered { number, found: Found { score: fused.score, sources, ..chunk } }
    }
}

fn same_chunks(indexes: &[OpenIndex]) -> Result<bool, OperatorError> {
    let Some((first, rest)) = indexes.split_first() else { return Ok(true) };
    for index in rest {
        // Equal digests spare reading the files.
        let known = !index.digest.is_empty() && index.digest == first.digest;
        if !known && !first.chunks.same_as(&index.chunks)? {
            return Ok(false);
        }
    }
    Ok(true)
}
