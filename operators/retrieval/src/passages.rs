//! Encodes passages, reusing vectors of earlier runs.

use searchmill_engine::operator::{Context, OperatorError};
use searchmill_models::groups::groups;
use searchmill_models::{Encoder, Role};

/// Passages that wait for encoding.
pub(super) struct Passages<'a> {
    pub(super) encoder: &'a dyn Encoder,
    pub(super) context: &'a Context,
    pub(super) waiting: Vec<String>,
    /// Number of vectors that came from the cache.
    pub(super) known: u64,
}

/// The passages of one group, and their vectors if cached.
struct Group {
    count: usize,
    /// The texts, each preceded by its length.
    content: Vec<u8>,
    vectors: Option<Vec<f32>>,
}

impl Passages<'_> {
    /// Encodes the waiting passages in order. The last group keeps waiting, as more passages may join it, unless this
    /// is the `end`.
    pub(super) fn encode(&mut self, end: bool) -> Result<Vec<f32>, OperatorError> {
        self.context.check_cancelled()?;
        let texts: Vec<&str> = self.waiting.iter().map(String::as_str).collect();
        let Some(bytes) = self.encoder.group_bytes() else {
            let vectors = self.encoder.encode(&texts, Role::Passage)?;
            self.waiting.clear();
            return Ok(vectors);
        };
        let mut ranges = groups(&texts, bytes);
        if !end && ranges.len() > 1 {
            ranges.pop();
        }
        let mut found = Vec::with_capacity(ranges.len());
        let mut missing = Vec::new();
        for range in &ranges {
            let group = self.find(&texts[range.clone()])?;
            if group.vectors.is_none() {
                missing.extend_from_slice(&texts[range.clone()]);
            }
            found.push(group);
        }
        let computed = self.encoder.encode(&missing, Role::Passage)?;
        let taken = ranges.last().map_or(0, |range| range.end);
        self.waiting.drain(..taken);
        self.put_together(found, &computed)
    }

    fn find(&self, texts: &[&str]) -> Result<Group, OperatorError> {
        let mut content = Vec::new();
        for text in texts {
            content.extend((text.len() as u64).to_le_bytes());
            content.extend(text.as_bytes());
        }
        let numbers = texts.len() * self.encoder.dimensions();
        let known = self.context.find_piece(&content)?;
        let vectors = known.filter(|bytes| bytes.len() == numbers * size_of::<f32>()).map(|bytes| read(&bytes));
        Ok(Group { count: texts.len(), content, vectors })
    }

    fn put_together(&mut self, groups: Vec<Group>, mut computed: &[f32]) -> Result<Vec<f32>, OperatorError> {
        let mut all = Vec::new();
        for group in groups {
            if let Some(vectors) = group.vectors {
                self.known += group.count as u64;
                all.extend(vectors);
                continue;
            }
            let (own, rest) = computed.split_at(group.count * self.encoder.dimensions());
            let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
            self.context.keep_piece(&group.content, &bytes)?;
            all.extend_from_slice(own);
            computed = rest;
        }
        Ok(all)
    }
}

fn read(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use searchmill_engine::fingerprint::hash_bytes;
    use searchmill_engine::operator::testing::Harness;
    use searchmill_engine::store::Store;
    use searchmill_fixtures::models::tiny_bert;
    use searchmill_models::BertEncoder;
    use searchmill_models::device::Compute;

    use super::*;

    fn texts() -> Vec<String> {
        let words = ["the", "river", "flows", "into", "sea", "query"];
        (0..400).map(|n| (0..=n % 7).map(|word| words[(n * 31 + word * n) % 6]).collect::<Vec<_>>().join(" ")).collect()
    }

    /// Returns the vectors and the number of cached ones.
    fn encode(texts: &[String], encoder: &dyn Encoder, context: &Context) -> (Vec<f32>, u64) {
        let mut passages = Passages { encoder, context, waiting: Vec::new(), known: 0 };
        let mut vectors = Vec::new();
        for window in texts.chunks(150) {
            passages.waiting.extend_from_slice(window);
            vectors.extend(passages.encode(false).unwrap());
        }
        vectors.extend(passages.encode(true).unwrap());
        (vectors, passages.known)
    }

    #[test]
    fn a_changed_passage_costs_its_group_and_every_vector_is_as_if_made_anew() {
        let model = tempfile::tempdir().unwrap();
        tiny_bert(model.path());
        let params = serde_json::from_value(serde_json::json!({"model": "x", "batch_tokens": 32})).unwrap();
        let encoder = BertEncoder::open(model.path(), &params, &Compute::cpu()).unwrap();
        let mut harness = Harness::new();
        let store = Store::open(&harness.path().join("store")).unwrap();
        let anew = |texts: &[String]| encode(texts, &encoder, &Harness::new().context());
        harness.pieces = Arc::new(store.pieces(&hash_bytes(b"index"), true));
        let mut texts = texts();
        let (vectors, _) = encode(&texts, &encoder, &harness.context());
        assert_eq!(vectors, anew(&texts).0, "only repeated groups are cached yet");
        harness.pieces = Arc::new(store.pieces(&hash_bytes(b"index"), true));
        let (vectors, known) = encode(&texts, &encoder, &harness.context());
        assert_eq!((vectors, known), (anew(&texts).0, 400));
        texts[200].push_str(" sea");
        texts.insert(20, "into the sea".to_owned());
        let (vectors, known) = encode(&texts, &encoder, &harness.context());
        assert_eq!(vectors, anew(&texts).0);
        assert!((300..400).contains(&known), "{known}");
    }
}
