//! Searches any set of indexes and fuses their rankings.

use std::collections::BTreeSet;

use searchmill_engine::operator::{Context, OperatorError, TreeInput};
use searchmill_schemas::HitSource;

use super::chunk_store::{ChunkStore, decode};
use super::descriptor::Descriptor;
use super::fuse::{Fused, Place, Ranked, fuse};
use super::{Found, Fusion, Retriever, Row, SearchSettings, each_query};

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
        let indexes = trees.iter().enumerate().map(|(place, tree)| {
            let descriptor = Descriptor::read(&tree.path)?;
            Ok(OpenIndex {
                name: format!("{}:{place}", descriptor.kind.name()),
                retriever: descriptor.open(&tree.path, context)?,
                ranks: descriptor.kind.ranks_candidates(),
                chunks: ChunkStore::open(&tree.path)?,
                digest: descriptor.chunks,
            })
        });
        let indexes = indexes.collect::<Result<Vec<_>, OperatorError>>()?;
        let rank = indexes.iter().filter(|index| index.ranks).count();
        if let Some(issue) = settings.fusion_issue(indexes.len(), rank) {
            let error = OperatorError::pipeline(issue.message);
            return Err(issue.help.into_iter().fold(error, OperatorError::with_help));
        }
        let shared = same_chunks(&indexes)?;
        if settings.candidates > 0 && !shared {
            return Err(OperatorError::pipeline("`candidates` needs indexes of the same chunks").with_help(
                "build the indexes from the same node; without `candidates`, different chunks can be fused",
            ));
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
        let found = |list: Vec<Numbered>| list.into_iter().map(|chunk| chunk.found).collect();
        Ok(lists.into_iter().map(found).collect())
    }

    /// Searches as if `top_k` were the setting, and numbers the chunks.
    ///
    /// # Errors
    /// Fails if an index cannot be read.
    pub fn search_numbered(&self, queries: &[&str], top_k: usize) -> Result<Vec<Vec<Numbered>>, OperatorError> {
        let pool = if self.indexes.len() == 1 { top_k } else { self.settings.pool.max(top_k) };
        let lists = if self.settings.candidates == 0 {
            let lists = self.indexes.iter().map(|index| index.retriever.search_batch(queries, pool));
            lists.collect::<Result<Vec<_>, _>>()?
        } else {
            self.rank_candidates(queries, pool, self.settings.candidates.max(top_k))?
        };
        let of_query = |query: usize| {
            let lists: Vec<&[Row]> = lists.iter().map(|list| list[query].as_slice()).collect();
            self.merge(&lists, top_k)
        };
        each_query(queries.len(), of_query)
    }

    /// Searches the indexes, those that rank candidates among the best `candidates` rows of each other index. Without
    /// fusion, the others' lists are left out.
    fn rank_candidates(
        &self,
        queries: &[&str],
        pool: usize,
        candidates: usize,
    ) -> Result<Vec<Vec<Vec<Row>>>, OperatorError> {
        let finds = |index: &OpenIndex| -> Result<Vec<Vec<Row>>, OperatorError> {
            if index.ranks { Ok(Vec::new()) } else { index.retriever.search_batch(queries, pool.max(candidates)) }
        };
        let mut lists = self.indexes.iter().map(finds).collect::<Result<Vec<_>, _>>()?;
        let of_query = |query: usize| {
            let found = lists.iter().filter_map(|list| list.get(query));
            let rows: BTreeSet<u32> = found.flat_map(|list| list.iter().take(candidates).map(|row| row.row)).collect();
            rows.into_iter().collect()
        };
        let rows: Vec<Vec<u32>> = (0..queries.len()).map(of_query).collect();
        for (index, lists) in self.indexes.iter().zip(&mut lists) {
            if index.ranks {
                *lists = index.retriever.rank_batch(queries, &rows, pool)?;
            } else {
                let kept = if self.settings.fusion == Fusion::None { 0 } else { pool };
                for list in lists {
                    list.truncate(kept);
                }
            }
        }
        Ok(lists)
    }

    /// Fuses the lists of one query.
    fn merge(&self, lists: &[&[Row]], top_k: usize) -> Result<Vec<Numbered>, OperatorError> {
        let (fusion, number) = (&self.settings.fusion, |places: &[Place]| self.number(lists, places));
        if self.shared {
            let lists: Vec<Vec<Ranked<u32>>> = lists.iter().map(|list| list.iter().map(by_row).collect()).collect();
            let chunk = |f: &Fused<u32>| self.indexes[0].chunks.chunk(f.key);
            let fused = fuse(&lists, fusion, top_k).into_iter();
            return fused.map(|f| Ok(self.numbered(number(&f.places), chunk(&f)?, &f))).collect();
        }
        let ranked = self.indexes.iter().zip(lists).map(|(index, list)| by_record(&index.chunks, list));
        let ranked = ranked.collect::<Result<Vec<_>, _>>()?;
        let fused = fuse(&ranked, fusion, top_k).into_iter();
        fused.map(|f| Ok(self.numbered(number(&f.places), decode(&f.key)?, &f))).collect()
    }

    /// Returns the number of a chunk: its row in the first index that returned it, after those of the indexes before.
    fn number(&self, lists: &[&[Row]], places: &[Place]) -> u64 {
        let Some(first) = places.first() else { return 0 };
        let row = lists[first.list].get(first.rank - 1).map_or(0, |found| u64::from(found.row));
        let before = if self.shared { &[] } else { &self.indexes[..first.list] };
        row + before.iter().map(|index| u64::from(index.chunks.rows())).sum::<u64>()
    }

    fn numbered<K>(&self, number: u64, chunk: Found, fused: &Fused<K>) -> Numbered {
        Numbered { number, found: self.found(chunk, fused) }
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
