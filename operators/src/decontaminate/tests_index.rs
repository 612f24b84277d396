//! The texts of the test sets, by n-gram and by signature.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::StringArray;
use indexmap::IndexMap;
use rayon::prelude::*;
use searchmill_text::minhash::{self, Bands, jaccard};
use searchmill_text::words::Words;

use crate::shared::columns::id_at;
use crate::shared::near::{Minhash, Sketcher};

/// Maximum number of test rows listed for a row.
pub(super) const LISTED: usize = 10;

/// A row of a test set.
pub(super) struct Test {
    /// Number of the test set, from 1.
    pub(super) set: usize,
    /// Number of the row, from 1.
    pub(super) row: u64,
    pub(super) id: Option<String>,
    /// Whether a row matched it.
    pub(super) found: AtomicBool,
    grams: Box<[u64]>,
}

/// A match of a row.
pub(super) struct Found {
    /// Number of the test row.
    pub(super) test: u32,
    /// Name of the comparison.
    pub(super) by: &'static str,
    pub(super) ngram: Option<String>,
    pub(super) similarity: Option<f64>,
}

/// The rows of the test sets, in order.
#[derive(Default)]
pub(super) struct TestsIndex {
    ngram: usize,
    min_words: usize,
    sketcher: Option<Sketcher>,
    pub(super) tests: Vec<Test>,
    pub(super) sets: usize,
    /// Test rows that are too short to be compared.
    pub(super) short: usize,
    /// Whether all test rows are compared in another way, too.
    pub(super) compares_all: bool,
    rows: u64,
    /// Lengths of the n-grams in `grams`.
    lengths: BTreeSet<usize>,
    /// Test rows by the hash of an n-gram, ascending.
    grams: IndexMap<u64, Vec<u32>>,
    bands: Option<Bands>,
}

impl TestsIndex {
    pub(super) fn new(ngram: usize, min_words: usize, minhash: Option<&Minhash>) -> Self {
        let sketcher = minhash.map(Sketcher::new);
        let bands = sketcher.as_ref().map(Sketcher::bands);
        Self { ngram, min_words, sketcher, bands, ..Self::default() }
    }

    /// Starts the next test set.
    pub(super) fn add_set(&mut self) {
        self.sets += 1;
        self.rows = 0;
    }

    /// Adds rows of the test set.
    pub(super) fn add(&mut self, texts: &[String], ids: Option<&StringArray>) {
        let sketcher = self.sketcher.as_ref();
        let sketched = texts.par_iter().map(|text| {
            let grams = sketcher.map(|sketcher| sketcher.set(text)).unwrap_or_default();
            let signature = sketcher.and_then(|sketcher| sketcher.signature(&grams));
            (Words::folded(text), grams, signature)
        });
        for (row, (words, grams, signature)) in sketched.collect::<Vec<_>>().into_iter().enumerate() {
            let number = self.tests.len() as u32;
            let is_compared = self.add_grams(number, &words) || signature.is_some() || self.compares_all;
            self.short += usize::from(!is_compared);
            if let (Some(bands), Some(signature)) = (&mut self.bands, signature) {
                bands.add(number, &signature);
            }
            self.rows += 1;
            let found = AtomicBool::default();
            self.tests.push(Test { set: self.sets, row: self.rows, id: id_at(ids, row), found, grams });
        }
    }

    /// Returns whether the text is long enough.
    fn add_grams(&mut self, number: u32, words: &Words) -> bool {
        let length = self.ngram.min(words.count());
        // An `ngram` below `min_words` lowers the limit: no n-gram could reach it.
        if length == 0 || length < self.min_words.min(self.ngram) {
            return false;
        }
        self.lengths.insert(length);
        for gram in words.windows(length) {
            let tests = self.grams.entry(minhash::hash(gram)).or_default();
            // A text may have an n-gram several times. Numbers ascend, so the last one is enough.
            if tests.last() != Some(&number) {
                tests.push(number);
            }
        }
        true
    }

    /// Call it after the last row.
    pub(super) fn finish(&mut self) {
        if let Some(bands) = &mut self.bands {
            bands.sort();
        }
    }

    /// Returns the test rows that a text matches: by n-grams, then by similarity, at most [`LISTED`] each.
    pub(super) fn find(&self, text: &str) -> Vec<Found> {
        let mut found = self.by_ngram(text);
        found.extend(self.by_similarity(text));
        found
    }

    fn by_ngram(&self, text: &str) -> Vec<Found> {
        let mut shared: BTreeMap<u32, &str> = BTreeMap::new();
        let words = Words::folded(text);
        // A short test text is one n-gram of its own length, so the row is cut into every length that occurs.
        for gram in self.lengths.iter().flat_map(|&length| words.windows(length)) {
            let Some(tests) = self.grams.get(&minhash::hash(gram)) else { continue };
            for &test in tests {
                self.tests[test as usize].found.store(true, Ordering::Relaxed);
            }
            // The first test rows of all are among the first ones of each n-gram.
            for &test in tests.iter().take(LISTED) {
                shared.entry(test).or_insert(gram);
            }
        }
        let listed = shared.into_iter().take(LISTED);
        listed.map(|(test, gram)| Found { test, by: "ngram", ngram: Some(gram.to_owned()), similarity: None }).collect()
    }

    fn by_similarity(&self, text: &str) -> Vec<Found> {
        let (Some(sketcher), Some(bands)) = (&self.sketcher, &self.bands) else { return Vec::new() };
        let grams = sketcher.set(text);
        let Some(signature) = sketcher.signature(&grams) else { return Vec::new() };
        let mut found = Vec::new();
        for test in bands.candidates(&signature) {
            let other = &self.tests[test as usize];
            if !sketcher.accepts(&grams, &other.grams) {
                continue;
            }
            // It counts as found, even if the list is full.
            other.found.store(true, Ordering::Relaxed);
            if found.len() < LISTED {
                let similarity = Some(jaccard(&grams, &other.grams));
                found.push(Found { test, by: "minhash", ngram: None, similarity });
            }
        }
        found
    }
}
