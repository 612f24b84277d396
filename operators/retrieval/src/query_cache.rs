//! Vectors of recent queries: a query that is repeated is not encoded again. A query's vector does not depend on the
//! other texts, so results are equal with and without the cache.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use searchmill_engine::operator::OperatorError;
use searchmill_models::{Encoder, Role};

/// Most bytes of texts and vectors in one generation.
const BYTES: usize = 32 << 20;

/// Two generations: what is used moves to the newer one; if that is full, the older one goes.
#[derive(Default)]
struct Generations {
    newer: HashMap<String, Vec<f32>>,
    older: HashMap<String, Vec<f32>>,
    /// Bytes of the newer one.
    bytes: usize,
}

impl Generations {
    fn get(&mut self, query: &str) -> Option<&[f32]> {
        if let Some((query, vector)) = self.older.remove_entry(query) {
            self.insert(query, vector);
        }
        self.newer.get(query).map(Vec::as_slice)
    }

    fn insert(&mut self, query: String, vector: Vec<f32>) {
        let bytes = query.len() + std::mem::size_of_val(vector.as_slice());
        // What was not used since the last change of generations is dropped.
        if self.bytes + bytes > BYTES {
            self.older = std::mem::take(&mut self.newer);
            self.bytes = 0;
        }
        if bytes <= BYTES && self.newer.insert(query, vector).is_none() {
            self.bytes += bytes;
        }
    }
}

/// Vectors of the queries that an index was asked.
#[derive(Default)]
pub(crate) struct QueryCache(Mutex<Generations>);

impl QueryCache {
    /// Returns the vectors of queries, concatenated in order; encodes those that are not known.
    ///
    /// # Errors
    /// Fails if the encoder fails.
    pub(crate) fn encode(&self, encoder: &dyn Encoder, queries: &[&str]) -> Result<Vec<f32>, OperatorError> {
        let dimensions = encoder.dimensions();
        let mut vectors = vec![0.0; queries.len() * dimensions];
        let (mut indexes, mut texts): (Vec<usize>, Vec<&str>) = (Vec::new(), Vec::new());
        {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            for (index, query) in queries.iter().enumerate() {
                if let Some(vector) = known.get(query) {
                    vectors[index * dimensions..][..dimensions].copy_from_slice(vector);
                } else {
                    indexes.push(index);
                    texts.push(query);
                }
            }
        }
        if texts.is_empty() {
            return Ok(vectors);
        }
        // The lock is free meanwhile: other queries need not wait for these.
        let new = encoder.encode(&texts, Role::Query)?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((index, text), vector) in indexes.into_iter().zip(texts).zip(new.chunks(dimensions)) {
            vectors[index * dimensions..][..dimensions].copy_from_slice(vector);
            known.insert(text.to_owned(), vector.to_vec());
        }
        Ok(vectors)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts the texts that it encodes.
    #[derive(Default)]
    struct Lengths(AtomicUsize);

    impl Encoder for Lengths {
        fn dimensions(&self) -> usize {
            2
        }

        fn encode(&self, texts: &[&str], _: Role) -> Result<Vec<f32>, OperatorError> {
            self.0.fetch_add(texts.len(), Ordering::Relaxed);
            Ok(texts.iter().flat_map(|text| [text.len() as f32, 1.0]).collect())
        }
    }

    #[test]
    fn a_repeated_query_is_not_encoded_again() {
        let (cache, encoder) = (QueryCache::default(), Lengths::default());
        let first = cache.encode(&encoder, &["a", "bb", "a"]).unwrap();
        assert_eq!(first, [1.0, 1.0, 2.0, 1.0, 1.0, 1.0]);
        assert_eq!(cache.encode(&encoder, &["bb", "ccc", "a"]).unwrap(), [2.0, 1.0, 3.0, 1.0, 1.0, 1.0]);
        assert_eq!(encoder.0.load(Ordering::Relaxed), 4);
        assert_eq!(cache.encode(&encoder, &[]).unwrap(), Vec::<f32>::new());
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut known = Generations::default();
        let large = vec![0.0; BYTES / 16];
        for number in 0..20 {
            known.insert(number.to_string(), large.clone());
            assert!(known.get("0").is_some(), "what is used stays: {number}");
        }
        assert!(known.newer.len() + known.older.len() <= 8 && known.get("1").is_none());
        known.insert("huge".to_owned(), vec![0.0; BYTES]);
        assert!(known.get("huge").is_none());
    }
}
