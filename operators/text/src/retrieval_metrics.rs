//! Retrieval metrics of one question: MultiHop-RAG's fact metrics, and recall of supporting documents at k.
//!
//! Fact metrics follow `retrieval_evaluate.py` of MultiHop-RAG (Tang and Yang 2024, arXiv 2401.15391). Its MAP is not
//! the standard one: a rank contributes the number of facts *first found there* divided by the rank, not the precision
//! so far. A perfect list of two facts in two chunks therefore has MAP@10 0.75.

use std::borrow::Cow;

use super::fnv::{OFFSET, fnv1a};
use super::unicode::nfkc;

/// Fact metrics of one ranked list, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FactScores {
    /// 1 if any of the first 10 texts contains a gold fact.
    pub hits_at_10: f64,
    /// 1 if any of the first 4 texts contains a gold fact.
    pub hits_at_4: f64,
    /// Σ over ranks of (facts first found at the rank / rank) / min(facts, 10).
    pub map_at_10: f64,
    /// 1 / rank of the first text with a gold fact; 0 if none of the first 10 has one.
    pub mrr_at_10: f64,
}

impl FactScores {
    /// The metrics' names, in the order of [`FactScores::values`].
    pub const NAMES: [&'static str; 4] = ["hits@10", "hits@4", "map@10", "mrr@10"];

    /// The metrics, in the order of [`FactScores::NAMES`].
    pub fn values(&self) -> [f64; 4] {
        [self.hits_at_10, self.hits_at_4, self.map_at_10, self.mrr_at_10]
    }
}

/// Texts beyond this rank are ignored.
const DEPTH: usize = 10;

/// Gold facts prepared for search: spaces and line feeds are ignored, case is not.
#[derive(Clone, Debug, Default)]
pub struct GoldFacts {
    facts: Vec<String>,
}

impl GoldFacts {
    /// Prepares the facts.
    pub fn new<'a>(facts: impl IntoIterator<Item = &'a str>) -> Self {
        Self { facts: facts.into_iter().map(squeeze).collect() }
    }

    /// Whether there are no facts; the metrics are then undefined.
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Returns the indices of the facts that occur in `text`.
    pub fn found_in(&self, text: &str) -> Vec<usize> {
        if self.facts.is_empty() {
            return Vec::new();
        }
        let text = squeeze(text);
        (0..self.facts.len()).filter(|&index| text.contains(&self.facts[index])).collect()
    }

    /// Computes the metrics of a list from [`GoldFacts::found_in`] of each text, best first. All are 0 if there are no
    /// facts.
    pub fn score(&self, found: &[Vec<usize>]) -> FactScores {
        let mut scores = FactScores::default();
        let mut known: Vec<&str> = Vec::new();
        for (rank, indexes) in (1..).zip(found.iter().take(DEPTH)).filter(|(_, indexes)| !indexes.is_empty()) {
            scores.hits_at_10 = 1.0;
            if rank <= 4 {
                scores.hits_at_4 = 1.0;
            }
            if scores.mrr_at_10 == 0.0 {
                scores.mrr_at_10 = 1.0 / f64::from(rank);
            }
            // A fact that occurs twice in the list counts once.
            let before = known.len();
            for &index in indexes {
                let fact = self.facts[index].as_str();
                if !known.contains(&fact) {
                    known.push(fact);
                }
            }
            scores.map_at_10 += (known.len() - before) as f64 / f64::from(rank);
        }
        scores.map_at_10 /= self.facts.len().clamp(1, DEPTH) as f64;
        scores
    }
}

fn squeeze(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '\n')).collect()
}

/// Returns the id of a passage that shares its title with others: the title, `#`, and the 64-bit FNV-1a hash of the text
/// as 16 hexadecimal digits.
pub fn passage_id(title: &str, text: &str) -> String {
    format!("{title}#{:016x}", fnv1a(OFFSET, text.as_bytes()))
}

/// Whether two document ids name the same passage; `None` unless both end in the hash of a text ([`passage_id`]). Titles
/// then prove nothing.
pub fn same_passage(gold: &str, seen: &str) -> Option<bool> {
    Some(text_hash(gold)? == text_hash(seen)?)
}

fn text_hash(id: &str) -> Option<&str> {
    let (_, hash) = id.rsplit_once('#')?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hash { Some(hash) } else { None }
}

/// Supporting documents, matched by id or by title.
#[derive(Clone, Debug, Default)]
pub struct GoldDocuments {
    documents: Vec<(Option<String>, Option<String>)>,
}

/// Share of the supporting documents among the first k hits, and whether all were found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DocumentRecall {
    /// Supporting documents found, divided by all supporting documents.
    pub recall: f64,
    /// 1 if all were found, else 0.
    pub all_found: f64,
}

impl GoldDocuments {
    /// Collects documents given by id, title or both. Entries without either are ignored. Of two entries with the same
    /// id, or with the same title where one has no id, only the first counts.
    pub fn new<'a>(documents: impl IntoIterator<Item = (Option<&'a str>, Option<&'a str>)>) -> Self {
        let mut gold = Self::default();
        for (id, title) in documents {
            let title = title.map(|title| nfkc(title.trim())).filter(|title| !title.is_empty());
            if (id.is_some() || title.is_some()) && !gold.knows(id, title.as_deref()) {
                gold.documents.push((id.map(str::to_owned), title.map(Cow::into_owned)));
            }
        }
        gold
    }

    fn knows(&self, id: Option<&str>, title: Option<&str>) -> bool {
        self.documents.iter().any(|(known_id, known_title)| match (known_id, id) {
            (Some(known), Some(id)) => known == id,
            _ => title.is_some() && known_title.as_deref() == title,
        })
    }

    /// Whether there are no documents; recall is then undefined.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Returns the indices of the documents that a hit matches: same id, or same title without surrounding white space,
    /// in any Unicode form.
    /// If both ids are derived from texts ([`passage_id`]), only the texts count.
    pub fn found_in(&self, document_id: &str, title: Option<&str>) -> Vec<usize> {
        let title = title.map(|title| nfkc(title.trim()));
        let mut found = Vec::new();
        for (index, (id, name)) in self.documents.iter().enumerate() {
            let same_text = id.as_deref().and_then(|id| same_passage(id, document_id));
            let same_title = name.is_some() && name.as_deref() == title.as_deref();
            if same_text.unwrap_or(id.as_deref() == Some(document_id) || same_title) {
                found.push(index);
            }
        }
        found
    }

    /// Computes recall among the first `k` hits from [`GoldDocuments::found_in`] of each, best first. Both values are 0
    /// if there are no documents.
    pub fn recall(&self, found: &[Vec<usize>], k: usize) -> DocumentRecall {
        let mut seen: Vec<usize> = found.iter().take(k).flatten().copied().collect();
        seen.sort_unstable();
        seen.dedup();
        let all = self.documents.len();
        if all == 0 {
            return DocumentRecall::default();
        }
        DocumentRecall { recall: seen.len() as f64 / all as f64, all_found: f64::from(u8::from(seen.len() == all)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn golden_vectors_of_multihop_rag() {
        let text = searchmill_fixtures::golden("retrieval_metrics.jsonl");
        let mut rows = 0;
        for line in text.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let retrieved: Vec<Vec<String>> = serde_json::from_value(row["retrieved"].clone()).unwrap();
            let gold: Vec<Vec<String>> = serde_json::from_value(row["gold"].clone()).unwrap();
            let scores: Vec<_> = retrieved.iter().zip(&gold).map(|(r, g)| fact_scores(&refs(r), &refs(g))).collect();
            for (place, name) in ["Hits@10", "Hits@4", "MAP@10", "MRR@10"].iter().enumerate() {
                let mean = scores.iter().map(|s| s.values()[place]).sum::<f64>() / scores.len() as f64;
                // `serde_json` may read a number one unit in the last place off.
                assert!((mean - row[*name].as_f64().unwrap()).abs() < 1e-12, "{} {name}", row["id"]);
            }
            rows += 1;
        }
        assert!(rows >= 9, "{rows} rows");
    }

    /// MultiHop-RAG's metrics of one ranked list of texts.
    fn fact_scores(retrieved: &[&str], facts: &[&str]) -> FactScores {
        let gold = GoldFacts::new(facts.iter().copied());
        gold.score(&retrieved.iter().take(DEPTH).map(|text| gold.found_in(text)).collect::<Vec<_>>())
    }

    fn refs(texts: &[String]) -> Vec<&str> {
        texts.iter().map(String::as_str).collect()
    }

    #[test]
    fn only_ten_ranks_count() {
        let mut texts = vec!["n"; 10];
        texts.push("aa");
        assert_eq!(fact_scores(&texts, &["aa"]), FactScores::default());
        assert_eq!(fact_scores(&[], &["aa"]), FactScores::default());
        assert_eq!(fact_scores(&["aa"], &[]), FactScores::default());
    }

    #[test]
    fn repeated_facts_are_found_once_but_divide_twice() {
        // The original's `find_gold` stores texts, but its `len(gold)` counts rows.
        assert_eq!(fact_scores(&["aa"], &["aa", "a a"]).map_at_10, 0.5);
    }

    #[test]
    fn documents_by_id_or_title() {
        let gold = GoldDocuments::new([
            (Some("d1"), Some("One")),
            (Some("d1"), Some("One")),
            (None, Some(" Two ")),
            (None, None),
            (Some("d3"), Some("Two")),
        ]);
        assert_eq!(gold.documents.len(), 2);
        let found: Vec<_> = [("x", None), ("d1", None), ("y", Some("Two ")), ("d1", Some("One"))]
            .map(|(id, title)| gold.found_in(id, title))
            .into();
        let recall = |k| gold.recall(&found, k);
        assert_eq!(recall(1), DocumentRecall { recall: 0.0, all_found: 0.0 });
        assert_eq!(recall(2), DocumentRecall { recall: 0.5, all_found: 0.0 });
        assert_eq!(recall(3), DocumentRecall { recall: 1.0, all_found: 1.0 });
        assert_eq!(GoldDocuments::new([]).recall(&found, 3), DocumentRecall::default());
    }

    #[test]
    fn passages_of_one_title_are_told_apart_by_their_texts() {
        let [first, second] = ["Green is an album.", "Green is a colour."].map(|text| passage_id("Green", text));
        assert_eq!(first, "Green#97b9cbfda5a2d9fa");
        let gold = GoldDocuments::new([(Some(first.as_str()), Some("Green")), (Some(second.as_str()), Some("Green"))]);
        assert_eq!(gold.found_in(&second, Some("Green")), [1], "not the other passage of the title");
        assert_eq!(gold.found_in(&format!("musique-{first}"), None), [0], "an `id_prefix` changes no text");
        assert_eq!(gold.found_in("Green~2", Some("Green")), [0, 1], "other ids: the title is all there is");
        assert_eq!(same_passage(&first, "Green#0"), None);
    }

    proptest! {
        #[test]
        fn metrics_are_bounded_and_ordered(
            texts in proptest::collection::vec("[ab ]{0,6}", 0..14),
            facts in proptest::collection::vec("[ab]{1,3}", 1..5),
        ) {
            let scores = fact_scores(&refs(&texts), &refs(&facts));
            prop_assert!(scores.values().iter().all(|v| (0.0..=1.0).contains(v)));
            prop_assert!(scores.hits_at_4 <= scores.hits_at_10);
            prop_assert!(scores.mrr_at_10 <= scores.hits_at_10);
            prop_assert!(scores.map_at_10 <= scores.hits_at_10);
        }

        #[test]
        fn recall_grows_with_k(titles in proptest::collection::vec("[a-e]", 0..12), gold in proptest::collection::vec("[a-e]", 1..4)) {
            let gold = GoldDocuments::new(gold.iter().map(|title| (None, Some(title.as_str()))));
            let found: Vec<_> = titles.iter().map(|title| gold.found_in("", Some(title))).collect();
            for k in 0..titles.len() {
                prop_assert!(gold.recall(&found, k).recall <= gold.recall(&found, k + 1).recall);
            }
        }
    }
}
