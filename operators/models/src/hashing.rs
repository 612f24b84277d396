//! Vectors without a model: feature hashing (Weinberger et al., ICML 2009) of words and character n-grams.

use std::collections::BTreeMap;

use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue, spread};
use searchmill_text::analysis::{Analyzers, Language};
use searchmill_text::fnv::{OFFSET, fnv1a};
use searchmill_text::unicode::word_form;
use serde::{Deserialize, Serialize};

use super::encoder::{Encoder, Role};

/// Options of the hashing encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct HashingParams {
    /// Length of the vectors. More dimensions, fewer collisions, better recall.
    pub dimensions: usize,
    /// Language of the text, for stop words and stemming.
    pub language: Language,
    /// Length of the character n-grams of each word, with its ends marked (0: whole words only).
    pub ngram: usize,
    /// Weight of a capitalised word (others have weight 1), because names decide most searches. The first word of a query
    /// does not count as a name.
    pub name_weight: f64,
    /// Total weight of a word's n-grams (the word itself has weight 1).
    pub ngram_weight: f64,
}

impl Default for HashingParams {
    fn default() -> Self {
        Self { dimensions: 768, language: Language::default(), ngram: 4, name_weight: 3.0, ngram_weight: 1.0 }
    }
}

impl HashingParams {
    pub(super) fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        if !(8..=65_536).contains(&self.dimensions) {
            issues.push(ParamIssue::new(format!("{path}.dimensions"), "dimensions must be from 8 to 65536"));
        }
        for (name, weight) in [("name_weight", self.name_weight), ("ngram_weight", self.ngram_weight)] {
            if !weight.is_finite() || weight < 0.0 {
                let message = format!("{name} must be a number of at least 0");
                issues.push(ParamIssue::new(format!("{path}.{name}"), message));
            }
        }
        issues
    }
}

/// Hashes words and their character n-grams into a vector of length 1 (zeros for a text without words).
///
/// A word that occurs n times has weight 1 + ln n (times `name_weight` if it is ever capitalised). The bits of its mixed FNV-1a
/// hash give its index and sign.
pub struct HashingEncoder {
    params: HashingParams,
    analyzers: Analyzers,
}

impl HashingEncoder {
    /// Creates an encoder.
    pub fn new(params: &HashingParams) -> Self {
        Self { params: params.clone(), analyzers: Analyzers::new(params.language) }
    }

    /// A chunk is encoded by one thread, its words in the order of a map: the sums are the same in every run.
    fn encode_one(&self, text: &str, role: Role, vector: &mut [f32]) {
        // Tokens have offsets in the word form.
        let form = word_form(text);
        let text = form.as_ref();
        let mut words: BTreeMap<String, (u32, f32)> = BTreeMap::new();
        let first = text.len() - text.trim_start().len();
        self.analyzers.each_token(text, |token| {
            // The first word of a question is capitalised, whatever it is.
            let capital = text[token.offset_from..].starts_with(char::is_uppercase);
            let name = capital && (role == Role::Passage || token.offset_from != first);
            let weight = if name { self.params.name_weight as f32 } else { 1.0 };
            let word = words.entry(token.text.clone()).or_insert((0, weight));
            *word = (word.0 + 1, word.1.max(weight));
        });
        for (term, (count, weight)) in &words {
            self.add_term(vector, term, weight * (1.0 + (*count as f32).ln()));
        }
        normalize(vector);
    }

    fn add_term(&self, vector: &mut [f32], term: &str, weight: f32) {
        add(vector, feature(b'w', term.as_bytes()), weight);
        if self.params.ngram == 0 || self.params.ngram_weight == 0.0 {
            return;
        }
        let marked = format!("<{term}>");
        let mut starts: Vec<usize> = marked.char_indices().map(|(start, _)| start).collect();
        starts.push(marked.len());
        let grams = starts.windows((self.params.ngram + 1).min(starts.len()));
        let share = weight * (self.params.ngram_weight as f32 / grams.len() as f32).sqrt();
        for gram in grams {
            add(vector, feature(b'g', &marked.as_bytes()[gram[0]..gram[gram.len() - 1]]), share);
        }
    }
}

impl Encoder for HashingEncoder {
    fn dimensions(&self) -> usize {
        self.params.dimensions
    }

    fn encode(&self, texts: &[&str], role: Role) -> Result<Vec<f32>, OperatorError> {
        let dimensions = self.params.dimensions;
        let mut vectors = vec![0.0; texts.len() * dimensions];
        let places = vectors.par_chunks_mut(dimensions).zip(texts);
        places.for_each(|(vector, text)| self.encode_one(text, role, vector));
        Ok(vectors)
    }
}

/// Adds a feature at the index and with the sign given by its hash.
fn add(vector: &mut [f32], feature: u64, weight: f32) {
    let index = (feature >> 1) % vector.len() as u64;
    // With signs, collisions cancel out on average (Weinberger et al. 2009).
    vector[index as usize] += if feature & 1 == 0 { weight } else { -weight };
}

/// FNV-1a with the finaliser of SplitMix64, because FNV alone gives short words similar high bits.
fn feature(kind: u8, bytes: &[u8]) -> u64 {
    spread(fnv1a(fnv1a(OFFSET, &[kind]), bytes))
}

/// Scales a vector to length 1; a zero vector stays zero.
pub(super) fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        for x in vector {
            *x /= length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(encoder: &HashingEncoder, left: &str, right: &str) -> f32 {
        let vectors = encoder.encode(&[left, right], Role::Passage).unwrap();
        let (left, right) = vectors.split_at(encoder.dimensions());
        left.iter().zip(right).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn related_texts_are_nearer_than_unrelated_ones() {
        let encoder = HashingEncoder::new(&HashingParams::default());
        let near = cosine(&encoder, "The company acquired a startup", "startups that companies are acquiring");
        let far = cosine(&encoder, "The company acquired a startup", "rivers of northern Norway");
        assert!(near > 0.5 && far.abs() < 0.25, "{near} {far}");
        assert!((cosine(&encoder, "Kraków", "Kraków") - 1.0).abs() < 1e-6);
        assert!((cosine(&encoder, "Kraków ＡＢＣ", "Krako\u{301}w ABC") - 1.0).abs() < 1e-6);
    }

    #[test]
    fn vectors_have_length_one_and_known_values() {
        let encoder = HashingEncoder::new(&HashingParams { dimensions: 8, ngram: 0, ..HashingParams::default() });
        assert_eq!(encoder.encode(&["", "the"], Role::Query).unwrap(), [0.0; 16]);
        let vector = encoder.encode(&["films"], Role::Query).unwrap();
        assert_eq!(vector.iter().map(|x| x.abs()).sum::<f32>(), 1.0);
        // The values are part of every stored index: a change needs a new operator version.
        assert_eq!(vector.iter().position(|x| *x != 0.0), Some(7));
    }
}
