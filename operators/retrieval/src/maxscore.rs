//! Finds the best documents of a BM25 query exactly, without reading every posting.
//!
//! Lists are processed by weight of their terms (rare terms, short lists first), and scores accumulate per document.
//! Once the remaining lists cannot lift a new document into the best `k`, only documents that can still reach it are
//! looked up there, by seeking: Turtle and Flood's MaxScore (1995), term at a time. While these are many, a list is
//! added as a whole, which is faster. Scores are added in the same order for every document, so equal documents get
//! equal scores in every segment, and either way the same.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use searchmill_kernels::sums;
use tantivy::postings::TermInfo;
use tantivy::schema::Field;

use super::postings::{KnownTerm, KnownTerms, List, Segment, Unpacked, for_each_block};
use super::statistics::Statistics;

/// Scanning the sums pays off while more than one posting per so many documents remains.
const SCAN_PAYS: u64 = 16;
/// Looking a document up in a list costs as much as adding so many postings.
const LOOK_UP: u64 = 16;
/// Factor on bounds, to cover the rounding of sums.
const SLACK: f32 = 1.000_1;

/// A term of the query. Its weight times the maximum of its list bounds its contribution.
struct QueryTerm {
    weight: f32,
    known: Arc<KnownTerm>,
}

/// The query's terms that occur in the index, heaviest first (ties by text).
pub(crate) struct TermQuery {
    terms: Vec<QueryTerm>,
}

impl TermQuery {
    /// Looks up the terms; a repeated term counts repeatedly.
    pub(crate) fn new(
        words: &[String],
        field: Field,
        known: &KnownTerms,
        segments: &[Segment],
        statistics: &Statistics,
    ) -> tantivy::Result<Self> {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for word in words {
            *counts.entry(word).or_default() += 1;
        }
        let mut terms = Vec::with_capacity(counts.len());
        for (word, count) in counts {
            if let Some(known) = known.get(word, field, segments, statistics)? {
                terms.push(QueryTerm { weight: statistics.weight(known.postings) * count as f32, known });
            }
        }
        // The sort is stable: equal weights stay in text order.
        terms.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        Ok(Self { terms })
    }

    /// Returns the maximum contribution of each term and all later ones in a segment; the last entry is 0.
    fn bounds(&self, segment: usize) -> Vec<f32> {
        let mut bounds = vec![0.0; self.terms.len() + 1];
        for (position, term) in self.terms.iter().enumerate().rev() {
            // An upper bound of the factors in the list.
            let most = match &term.known.lists[segment] {
                Some(List::Unpacked(list)) => list.most,
                Some(List::Packed(_)) => 1.0,
                None => 0.0,
            };
            bounds[position] = bounds[position + 1] + term.weight * most * SLACK;
        }
        bounds
    }
}

/// A matching document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Match {
    pub segment: u32,
    pub document: u32,
    pub score: f32,
}

/// Sums of one segment, reused across queries.
#[derive(Default)]
struct Sums {
    /// By document; 0 if no term matched.
    scores: Vec<f32>,
    ranking: Vec<f32>,
    high: Vec<(u32, f32)>,
}

impl Sums {
    /// Returns the `k`-th best sum, or `floor` if it is lower.
    fn kth(&mut self, k: usize, floor: f32) -> f32 {
        self.high.clear();
        sums::at_least(&self.scores, floor, &mut self.high);
        self.ranking.clear();
        self.ranking.extend(self.high.iter().map(|(_, score)| *score));
        kth(&mut self.ranking, k).max(floor)
    }
}

thread_local! {
    static SUMS: RefCell<Sums> = RefCell::default();
}

/// Returns at least the best `k` documents of all segments (more if scores tie), unordered.
pub(crate) fn best(
    query: &TermQuery,
    segments: &[Segment],
    statistics: &Statistics,
    k: usize,
) -> tantivy::Result<Vec<Match>> {
    let mut found = Vec::new();
    if k == 0 || query.terms.is_empty() {
        return Ok(found);
    }
    SUMS.with_borrow_mut(|sums| {
        let mut floor = 0.0;
        for (number, segment) in segments.iter().enumerate() {
            // The floor of the segments before: their best documents compete with those of this one.
            let search = SegmentSearch { query, segment, number, statistics, k, floor };
            search.run(sums, &mut found)?;
            sums.ranking.clear();
            sums.ranking.extend(found.iter().map(|found| found.score));
            floor = kth(&mut sums.ranking, k);
            found.retain(|found| found.score >= floor);
        }
        Ok(found)
    })
}

/// Returns the `k`-th highest score and reorders the slice. Returns 0 if there are fewer.
fn kth(scores: &mut [f32], k: usize) -> f32 {
    if scores.len() < k {
        return 0.0;
    }
    *scores.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}

struct SegmentSearch<'a> {
    query: &'a TermQuery,
    segment: &'a Segment,
    number: usize,
    statistics: &'a Statistics,
    k: usize,
    /// Lower scores are irrelevant.
    floor: f32,
}

impl SegmentSearch<'_> {
    fn run(&self, sums: &mut Sums, found: &mut Vec<Match>) -> tantivy::Result<()> {
        let documents = self.segment.lengths.len();
        sums::clear(&mut sums.scores, documents);
        let bounds = self.query.bounds(self.number);
        let mut floor = self.floor;
        let mut next = 0;
        while next < self.query.terms.len()
            && (bounds[next] >= floor || self.adding_pays(next, least(floor, bounds[next]), &sums.scores))
        {
            self.add_list(next, &mut sums.scores)?;
            next += 1;
            // A higher floor may end this loop early, but finding it reads all sums.
            let postings: u64 = self.query.terms[next..].iter().map(|term| term.known.postings).sum();
            if postings > documents as u64 / SCAN_PAYS {
                floor = sums.kth(self.k, floor);
            }
        }
        // The other lists are only looked up, for the documents that can still be among the best.
        let mut left: Vec<(u32, f32)> = Vec::new();
        // Finds a few too many documents, fast: see `least`.
        sums::at_least(&sums.scores, least(floor, bounds[next]), &mut left);
        left.retain(|(_, score)| score * SLACK + bounds[next] >= floor);
        let mut ranking = Vec::new();
        for term in next..self.query.terms.len() {
            match self.list(term) {
                (_, None) => {}
                (weight, Some(List::Unpacked(list))) => look_up(list, weight, &mut left),
                (weight, Some(List::Packed(info))) => self.look_up_packed(info, weight, &mut left)?,
            }
            ranking.clear();
            ranking.extend(left.iter().map(|(_, score)| *score));
            // Each list raises the floor and lowers what the rest can add: fewer documents are looked up in the next.
            floor = floor.max(kth(&mut ranking, self.k));
            left.retain(|(_, score)| score * SLACK + bounds[term + 1] >= floor);
        }
        let segment = self.number as u32;
        found.extend(left.into_iter().map(|(document, score)| Match { segment, document, score }));
        Ok(())
    }

    /// Whether adding a list is faster than looking up the documents whose sums are at least `least`.
    fn adding_pays(&self, term: usize, least: f32, scores: &[f32]) -> bool {
        let postings = match self.list(term).1 {
            Some(List::Unpacked(list)) => list.documents.len() as u64,
            Some(List::Packed(_)) => return false,
            None => return true,
        };
        postings < LOOK_UP * u64::from(sums::count(scores, least))
    }

    /// Returns a term's weight and its list in this segment.
    fn list(&self, term: usize) -> (f32, Option<&List>) {
        let term = &self.query.terms[term];
        (term.weight, term.known.lists[self.number].as_ref())
    }

    /// Adds a whole list to the sums.
    fn add_list(&self, term: usize, scores: &mut [f32]) -> tantivy::Result<()> {
        match self.list(term) {
            (_, None) => {}
            (weight, Some(List::Unpacked(list))) => sums::add_list(scores, &list.documents, &list.factors, weight),
            (weight, Some(List::Packed(info))) => {
                for_each_block(self.segment.open_list(info)?, |documents, frequencies| {
                    for (document, frequency) in documents.iter().zip(frequencies) {
                        let class = self.segment.lengths[*document as usize];
                        scores[*document as usize] += weight * self.statistics.factor(*frequency, class);
                    }
                });
            }
        }
        Ok(())
    }

    fn look_up_packed(&self, info: &TermInfo, weight: f32, left: &mut [(u32, f32)]) -> tantivy::Result<()> {
        let mut postings = self.segment.open_list(info)?;
        for (document, score) in left {
            let index = postings.seek(*document);
            if postings.doc(index) == *document {
                let class = self.segment.lengths[*document as usize];
                *score += weight * self.statistics.factor(postings.freq(index), class);
            }
        }
        Ok(())
    }
}

/// Returns a sum that all documents have that can still reach `floor` with at most `bound`: slightly less than needed, to
/// cover the rounding of this division.
fn least(floor: f32, bound: f32) -> f32 {
    (floor - bound) / SLACK * 0.999
}

/// Adds the scores of a list to documents, which are sorted.
fn look_up(list: &Unpacked, weight: f32, left: &mut [(u32, f32)]) {
    let mut index = 0;
    for (document, score) in left {
        index = list.seek(index, *document);
        if list.documents.get(index) == Some(document) {
            *score += weight * list.factors[index];
        }
    }
}
