//! Caches unpacked posting lists: the documents of a term, and the term-frequency factor in each.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tantivy::postings::{BlockSegmentPostings, TermInfo};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{SegmentReader, Term};

use super::statistics::Statistics;

/// Limit of unpacked postings (8 bytes each, 128 MB). The cache is cleared when it is reached.
const MOST_POSTINGS: usize = 16 << 20;
/// Longer lists stay packed: they would displace all others.
const LONGEST_LIST: u32 = (MOST_POSTINGS / 16) as u32;
/// Memory of a cached term besides its postings, in postings.
const TERM_COST: usize = 64;

/// A segment's posting lists and document lengths.
pub(crate) struct Segment {
    lists: Arc<tantivy::InvertedIndexReader>,
    /// Length class of each document.
    pub(super) lengths: Vec<u8>,
    pub(super) tokens: u64,
}

impl Segment {
    pub(crate) fn open(reader: &SegmentReader, field: Field) -> tantivy::Result<Self> {
        let lists = reader.inverted_index(field)?;
        let norms = reader.get_fieldnorms_reader(field)?;
        let lengths = (0..reader.max_doc()).map(|document| norms.fieldnorm_id(document)).collect();
        Ok(Self { tokens: lists.total_num_tokens(), lists, lengths })
    }

    pub(super) fn open_list(&self, info: &TermInfo) -> tantivy::Result<BlockSegmentPostings> {
        Ok(self.lists.read_block_postings_from_terminfo(info, IndexRecordOption::WithFreqs)?)
    }

    fn list(&self, term: &Term, statistics: &Statistics) -> tantivy::Result<Option<List>> {
        let Some(info) = self.lists.get_term_info(term)? else { return Ok(None) };
        if info.doc_freq > LONGEST_LIST {
            return Ok(Some(List::Packed(info)));
        }
        let count = info.doc_freq as usize;
        let (mut all, mut factors, mut most) = (Vec::with_capacity(count), Vec::with_capacity(count), 0.0_f32);
        for_each_block(self.open_list(&info)?, |documents, frequencies| {
            for (document, frequency) in documents.iter().zip(frequencies) {
                let factor = statistics.factor(*frequency, self.lengths[*document as usize]);
                all.push(*document);
                factors.push(factor);
                most = most.max(factor);
            }
        });
        Ok(Some(List::Unpacked(Unpacked { documents: all, factors, most })))
    }
}

/// Passes the documents and term frequencies of a list to `take`, block by block.
pub(super) fn for_each_block(mut postings: BlockSegmentPostings, mut take: impl FnMut(&[u32], &[u32])) {
    loop {
        let length = postings.block_len();
        if length == 0 {
            return;
        }
        take(&postings.docs()[..length], &postings.freqs()[..length]);
        postings.advance();
    }
}

/// A term's list in one segment.
pub(super) enum List {
    Unpacked(Unpacked),
    /// Position of the packed list.
    Packed(TermInfo),
}

/// Sorted documents and the term-frequency factor of each.
pub(super) struct Unpacked {
    pub(super) documents: Vec<u32>,
    pub(super) factors: Vec<f32>,
    pub(super) most: f32,
}

impl Unpacked {
    /// Returns the position of the first document >= `document`, searching from `start` in growing steps.
    pub(super) fn seek(&self, start: usize, document: u32) -> usize {
        let rest = &self.documents[start..];
        let mut step = 1;
        while rest.get(step).is_some_and(|found| *found < document) {
            step *= 2;
        }
        let range = step / 2..rest.len().min(step + 1);
        start + range.start + rest[range].partition_point(|found| *found < document)
    }
}

/// A term that occurs in the index.
pub(super) struct KnownTerm {
    /// Number of documents that contain it.
    pub(super) postings: u64,
    /// Its list in each segment.
    pub(super) lists: Vec<Option<List>>,
}

/// Cache of looked-up terms, for any number of threads.
#[derive(Default)]
pub(crate) struct KnownTerms(RwLock<Memory>);

#[derive(Default)]
struct Memory {
    /// `None` if the term does not occur.
    terms: HashMap<String, Option<Arc<KnownTerm>>>,
    cost: usize,
}

impl KnownTerms {
    /// Returns the term and its lists, or `None` if it does not occur.
    pub(super) fn get(
        &self,
        word: &str,
        field: Field,
        segments: &[Segment],
        statistics: &Statistics,
    ) -> tantivy::Result<Option<Arc<KnownTerm>>> {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).terms.get(word) {
            return Ok(known.clone());
        }
        let term = Term::from_field_text(field, word);
        let mut lists = Vec::with_capacity(segments.len());
        let (mut postings, mut cost) = (0, TERM_COST);
        // Without the lock: other threads need not wait while lists are read.
        for segment in segments {
            let list = segment.list(&term, statistics)?;
            postings += match &list {
                Some(List::Unpacked(list)) => {
                    cost += list.documents.len();
                    list.documents.len() as u64
                }
                Some(List::Packed(info)) => u64::from(info.doc_freq),
                None => 0,
            };
            lists.push(list);
        }
        let known = if postings > 0 { Some(Arc::new(KnownTerm { postings, lists })) } else { None };
        self.keep(word, known.clone(), cost);
        Ok(known)
    }

    fn keep(&self, word: &str, known: Option<Arc<KnownTerm>>, cost: usize) {
        let mut memory = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if memory.cost + cost > MOST_POSTINGS {
            *memory = Memory::default();
        }
        // Another thread may have looked the same term up meanwhile: it costs once.
        if memory.terms.insert(word.to_owned(), known).is_none() {
            memory.cost += cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_found_from_any_place_on() {
        let documents = (0..100).map(|n| n * 3 + 1).collect();
        let list = Unpacked { documents, factors: vec![0.5; 100], most: 0.5 };
        for start in [0, 1, 7, 50, 99] {
            for document in 0..310 {
                let expected = (start..100).find(|place| list.documents[*place] >= document).unwrap_or(100);
                assert_eq!(list.seek(start, document), expected, "{start} {document}");
            }
        }
        assert_eq!(list.seek(100, 5), 100);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let terms = KnownTerms::default();
        for word in 0..MOST_POSTINGS / TERM_COST + 10 {
            terms.keep(&word.to_string(), None, TERM_COST);
        }
        let memory = terms.0.read().unwrap();
        assert_eq!((memory.terms.len(), memory.cost), (10, 10 * TERM_COST));
    }
}
