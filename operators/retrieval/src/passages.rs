//! Encodes passages, reusing vectors of earlier runs.

use searchmill_engine::operator::{Context, OperatorError, RowsInput};
use searchmill_models::groups::groups;
use searchmill_models::{Encoder, Role};

use super::chunk_store::ChunkWriter;

/// Chunks encoded together, independent of input batches.
const WINDOW: usize = 2048;

/// Encodes passages as one record of bytes each. A record shows its own length.
pub(super) trait Coder {
    /// Returns the bytes of the groups in which passages are encoded, if encoding costs more than reading cached
    /// records. A passage's record depends only on its group.
    fn group_bytes(&self) -> Option<usize>;

    /// Returns the records of texts, concatenated in order.
    fn encode(&self, texts: &[&str]) -> Result<Vec<u8>, OperatorError>;

    /// Returns the length of the first `count` records, or `None` if these bytes are no such records.
    fn length(&self, records: &[u8], count: usize) -> Option<usize>;
}

/// One vector per passage, as little-endian f32.
impl Coder for dyn Encoder + '_ {
    fn group_bytes(&self) -> Option<usize> {
        Encoder::group_bytes(self)
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<u8>, OperatorError> {
        Ok(Encoder::encode(self, texts, Role::Passage)?.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn length(&self, records: &[u8], count: usize) -> Option<usize> {
        let length = count * self.dimensions() * size_of::<f32>();
        if length <= records.len() { Some(length) } else { None }
    }
}

/// Reads the vectors of passages.
pub(super) fn read(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

/// Encodes the contents of all chunks and stores the chunks. `take` receives the records in order.
pub(super) fn encode_all<C: Coder + ?Sized>(
    coder: &C,
    rows: &RowsInput,
    chunks: &mut ChunkWriter,
    context: &Context,
    mut take: impl FnMut(Vec<u8>) -> Result<(), OperatorError>,
) -> Result<(), OperatorError> {
    let mut passages = Passages { coder, context, waiting: Vec::with_capacity(WINDOW), known: 0 };
    let mut done = 0;
    for batch in rows.batches() {
        let batch = batch?;
        chunks.write(&batch)?;
        for text in searchmill_schemas::text_column(&batch, "contents")?.iter().flatten() {
            passages.waiting.push(text.to_owned());
            if passages.waiting.len() >= WINDOW {
                take(passages.encode(false)?)?;
                context.progress().set(done + 1, rows.rows, "chunks");
            }
            done += 1;
        }
    }
    take(passages.encode(true)?)?;
    context.progress().set(done, rows.rows, "chunks");
    if passages.known > 0 {
        context.progress().log(&format!("{} of {done} vectors were cached", passages.known));
    }
    Ok(())
}

/// Passages that wait for encoding.
struct Passages<'a, C: ?Sized> {
    coder: &'a C,
    context: &'a Context,
    waiting: Vec<String>,
    /// Number of records that came from the cache.
    known: u64,
}

/// The passages of one group, and their records if cached.
struct Group {
    count: usize,
    /// The texts, each preceded by its length.
    content: Vec<u8>,
    records: Option<Vec<u8>>,
}

impl<C: Coder + ?Sized> Passages<'_, C> {
    /// Encodes the waiting passages in order. The last group keeps waiting, as more passages may join it, unless this
    /// is the `end`.
    fn encode(&mut self, end: bool) -> Result<Vec<u8>, OperatorError> {
        self.context.check_cancelled()?;
        let texts: Vec<&str> = self.waiting.iter().map(String::as_str).collect();
        let Some(bytes) = self.coder.group_bytes() else {
            let records = self.coder.encode(&texts)?;
            self.waiting.clear();
            return Ok(records);
        };
        let mut ranges = groups(&texts, bytes);
        if !end && ranges.len() > 1 {
            ranges.pop();
        }
        let (mut found, mut missing) = (Vec::with_capacity(ranges.len()), Vec::new());
        for range in &ranges {
            let texts = &texts[range.clone()];
            let mut content = Vec::new();
            for text in texts {
                content.extend((text.len() as u64).to_le_bytes());
                content.extend(text.as_bytes());
            }
            let known = self.context.find_piece(&content)?;
            let records = known.filter(|records| self.coder.length(records, texts.len()) == Some(records.len()));
            if records.is_none() {
                missing.extend_from_slice(texts);
            }
            found.push(Group { count: texts.len(), content, records });
        }
        // All groups that are not cached together: a model is fastest with many texts at a time.
        let computed = self.coder.encode(&missing)?;
        let taken = ranges.last().map_or(0, |range| range.end);
        self.waiting.drain(..taken);
        let (mut all, mut computed) = (Vec::new(), computed.as_slice());
        for group in found {
            if let Some(records) = group.records {
                self.known += group.count as u64;
                all.extend(records);
                continue;
            }
            let length = self.coder.length(computed, group.count);
            let length = length.ok_or_else(|| OperatorError::engine("an encoder gave too few vectors"))?;
            let (own, rest) = computed.split_at(length);
            self.context.keep_piece(&group.content, own)?;
            all.extend_from_slice(own);
            computed = rest;
        }
        Ok(all)
    }
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
        let mut passages = Passages { coder: encoder, context, waiting: Vec::new(), known: 0 };
        let mut records = Vec::new();
        for window in texts.chunks(150) {
            passages.waiting.extend_from_slice(window);
            records.extend(passages.encode(false).unwrap());
        }
        records.extend(passages.encode(true).unwrap());
        (read(&records), passages.known)
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
