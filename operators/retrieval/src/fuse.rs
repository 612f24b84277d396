//! Fuses several rankings into one.
//!
//! Ties have a fixed order: higher fused score, then the chunk that the earlier index returned (in the order of the
//! indexes), then the better rank in that index. This is the order of arrival, to which FlashRAG's fusion amounts.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How rankings of several indexes are fused. A single index keeps its own scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Fusion {
    /// Reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009). A chunk's score is the sum of 1 / (k + rank)
    /// over the indexes; ranks start at 1 in each index's pool.
    Rrf {
        /// A larger value gives top ranks less weight. The paper uses 60.
        #[serde(default = "rrf_k")]
        k: u32,
    },
    /// Weighted sum of scores. Per query, each index's pool is scaled to 0…1 (lowest to highest); a pool of equal
    /// scores counts as 1.
    Weighted {
        /// One weight per index, in their order (empty = all 1).
        #[serde(default)]
        weights: Vec<f64>,
    },
    /// The first chunks of each index, one index after the other, each chunk once, with its index's own score. Every index
    /// gives the same number: `top_k` divided by the number of indexes, rounded up.
    Concat,
    /// No fusion; requires a single index, or a single `late` index that ranks `candidates` of the others.
    None,
}

fn rrf_k() -> u32 {
    60
}

impl Default for Fusion {
    fn default() -> Self {
        Self::Rrf { k: rrf_k() }
    }
}

/// A chunk in the ranking of one index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ranked<K> {
    pub key: K,
    pub score: f64,
}

/// An index's rank and score of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// Position of the index, from 0.
    pub list: usize,
    /// Rank, from 1.
    pub rank: usize,
    /// The index's own score.
    pub score: f64,
}

/// A chunk in the fused ranking.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fused<K> {
    pub key: K,
    pub score: f64,
    pub places: Vec<Place>,
}

/// Returns the best `top_k` chunks of all lists. Each list is sorted best first.
pub(crate) fn fuse<K: Clone + Eq + std::hash::Hash>(
    lists: &[Vec<Ranked<K>>],
    fusion: &Fusion,
    top_k: usize,
) -> Vec<Fused<K>> {
    if *fusion == Fusion::Concat {
        return concatenated(lists, top_k);
    }
    let mut fused: IndexMap<K, Fused<K>> = IndexMap::new();
    for (list, ranked) in lists.iter().enumerate() {
        let scores = ranked.iter().map(|found| found.score);
        let (low, high) = (scores.clone().fold(f64::INFINITY, f64::min), scores.fold(f64::NEG_INFINITY, f64::max));
        for (place, found) in ranked.iter().enumerate() {
            let place = Place { list, rank: place + 1, score: found.score };
            // As a part of the list's range.
            let scaled = if high > low { (found.score - low) / (high - low) } else { 1.0 };
            let gain = match fusion {
                _ if lists.len() == 1 => found.score,
                Fusion::Rrf { k } => 1.0 / (f64::from(*k) + place.rank as f64),
                Fusion::Weighted { weights } => weights.get(list).copied().unwrap_or(1.0) * scaled,
                Fusion::Concat | Fusion::None => found.score,
            };
            let entry = fused.entry(found.key.clone()).or_insert_with(|| Fused {
                key: found.key.clone(),
                score: 0.0,
                places: Vec::new(),
            });
            entry.score += gain;
            entry.places.push(place);
        }
    }
    let mut best: Vec<_> = fused.into_values().collect();
    // The sort is stable: equal scores stay in order of arrival.
    best.sort_by(|a, b| b.score.total_cmp(&a.score));
    best.truncate(top_k);
    best
}

/// The first chunks of each list, one list after the other. A chunk stands where its first list has it, with that score.
fn concatenated<K: Clone + Eq + std::hash::Hash>(lists: &[Vec<Ranked<K>>], top_k: usize) -> Vec<Fused<K>> {
    let each = top_k.div_ceil(lists.len().max(1));
    let mut found: IndexMap<K, Fused<K>> = IndexMap::new();
    for (list, ranked) in lists.iter().enumerate() {
        for (place, one) in ranked.iter().take(each).enumerate() {
            let place = Place { list, rank: place + 1, score: one.score };
            let first = Fused { key: one.key.clone(), score: one.score, places: Vec::new() };
            found.entry(one.key.clone()).or_insert(first).places.push(place);
        }
    }
    found.into_values().take(top_k).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn lists_are_concatenated_each_chunk_once() {
        let list = |found: &[(&str, f64)]| -> Vec<Ranked<String>> {
            found.iter().map(|(key, score)| Ranked { key: (*key).to_owned(), score: *score }).collect()
        };
        let lists = [list(&[("a", 9.0), ("b", 8.0), ("c", 7.0)]), list(&[("b", 0.9), ("d", 0.8), ("e", 0.7)])];
        let found = |top_k: usize| -> Vec<(String, f64)> {
            fuse(&lists, &Fusion::Concat, top_k).into_iter().map(|one| (one.key, one.score)).collect()
        };
        let expected = [("a", 9.0), ("b", 8.0), ("d", 0.8)].map(|(key, score)| (key.to_owned(), score));
        assert_eq!(found(4), expected, "two of each, and one of them twice");
        assert_eq!(found(3), expected);
        assert_eq!(found(1), expected[..1]);
    }

    fn ranked(ids: &[&str]) -> Vec<Ranked<String>> {
        ids.iter().map(|id| Ranked { key: (*id).to_owned(), score: 1.0 }).collect()
    }

    fn golden_lists(case: &Value) -> Vec<Vec<Ranked<String>>> {
        let lists = case["arrival_order"].as_array().unwrap().iter();
        lists
            .map(|list| ranked(&list[1].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect::<Vec<_>>()))
            .collect()
    }

    #[test]
    fn rrf_equals_the_golden_vectors() {
        let text = searchmill_fixtures::golden("rrf.jsonl");
        for line in text.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let fusion = Fusion::Rrf { k: u32::try_from(case["k"].as_u64().unwrap()).unwrap() };
            let top_k = usize::try_from(case["topk"].as_u64().unwrap()).unwrap();
            let fused = fuse(&golden_lists(&case), &fusion, top_k);
            let ids: Vec<_> = fused.iter().map(|f| Value::from(f.key.clone())).collect();
            let scores: Vec<_> = fused.iter().map(|f| Value::from(f.score)).collect();
            assert_eq!(
                (Value::from(ids), Value::from(scores)),
                (case["ids"].clone(), case["scores"].clone()),
                "{line}"
            );
        }
    }

    #[test]
    fn weighted_scales_each_list_by_itself() {
        let list = |pairs: &[(&str, f64)]| -> Vec<_> {
            pairs.iter().map(|(key, score)| Ranked { key: (*key).to_owned(), score: *score }).collect()
        };
        let lists = [list(&[("a", 30.0), ("b", 20.0), ("c", 10.0)]), list(&[("c", 0.9), ("b", 0.8)])];
        let fused = fuse(&lists, &Fusion::Weighted { weights: vec![1.0, 2.0] }, 10);
        let got: Vec<_> = fused.iter().map(|f| (f.key.as_str(), f.score)).collect();
        assert_eq!(got, [("c", 2.0), ("a", 1.0), ("b", 0.5)]);
    }

    #[test]
    fn one_list_keeps_its_own_scores() {
        let list = vec![Ranked { key: "a", score: 7.5 }, Ranked { key: "b", score: 3.0 }];
        let fused = fuse(&[list], &Fusion::default(), 1);
        assert_eq!((fused.len(), fused[0].score, fused[0].places[0].rank), (1, 7.5, 1));
    }
}
