//! BM25 over Tantivy's inverted index: builds and opens indexes.
//!
//! Scores are computed here; Tantivy stores a passage's length in one byte. Rows go to segments in blocks of
//! [`BLOCK`] rows, so several threads build segments from one stream. The number of segments depends on the number of
//! rows only. Segments get numbers in place of random ids, so equal chunks give equal bytes.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue, RowsInput};
use searchmill_schemas::text_column;
use searchmill_text::analysis::{Analyzers, Language, analyzer};
use serde::{Deserialize, Serialize};
use tantivy::directory::MmapDirectory;
use tantivy::schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::{Index, IndexSettings, SegmentReader, SingleSegmentIndexWriter, TantivyDocument};

use super::chunk_store::ChunkWriter;
use super::maxscore::{TermQuery, best};
use super::postings::{KnownTerms, Segment};
use super::statistics::Statistics;
use super::{Lists, Retriever, Row, each_query};

const FOLDER: &str = "bm25";
const TOKENIZER: &str = "searchmill";
/// Rows that go to a segment at a time.
const BLOCK: u32 = 1024;
const ROWS_PER_SEGMENT: u64 = 65_536;
const MOST_SEGMENTS: u64 = 32;
/// Far above every published k1. The greatest numbers would overflow the scores.
const MOST_K1: f64 = 1000.0;
/// Writer memory. Tantivy's minimum is 15 MB; a single-segment writer never flushes early.
const WRITER_BYTES: usize = 64 << 20;

/// Options of a BM25 index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct Bm25Params {
    /// The language of passages and queries: lower case, without the language's stop words, Snowball stemmer. `cjk` for
    /// Chinese, Japanese and Korean, `plain` for lower case only.
    #[serde(default)]
    pub language: Language,
    /// How much further occurrences of a word in a passage count, from 0 to 1000 (1.2 in Lucene and Tantivy, 1.5 in bm25s, 0.9 in
    /// Pyserini).
    #[serde(default = "lucene_k1", skip_serializing_if = "is_lucene_k1")]
    pub k1: f64,
    /// How much the length of a passage counts against it, from 0 to 1 (0.75 in Lucene, Tantivy and bm25s, 0.4 in Pyserini).
    #[serde(default = "lucene_b", skip_serializing_if = "is_lucene_b")]
    pub b: f64,
}

impl Default for Bm25Params {
    fn default() -> Self {
        Self { language: Language::default(), k1: lucene_k1(), b: lucene_b() }
    }
}

impl Bm25Params {
    pub(super) fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        if !(0.0..=MOST_K1).contains(&self.k1) {
            let message = format!("k1 is between 0 and {MOST_K1}, found {}", self.k1);
            issues.push(ParamIssue::new(format!("{path}.k1"), message));
        }
        if !(0.0..=1.0).contains(&self.b) {
            issues.push(ParamIssue::new(format!("{path}.b"), format!("b is between 0 and 1, found {}", self.b)));
        }
        issues
    }
}

fn lucene_k1() -> f64 {
    1.2
}

fn lucene_b() -> f64 {
    0.75
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_lucene_k1(k1: &f64) -> bool {
    k1.to_bits() == lucene_k1().to_bits()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_lucene_b(b: &f64) -> bool {
    b.to_bits() == lucene_b().to_bits()
}

fn schema() -> (Schema, Field) {
    let mut builder = Schema::builder();
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(TOKENIZER)
        .set_index_option(IndexRecordOption::WithFreqs)
        .set_fieldnorms(true);
    let field = builder.add_text_field("contents", TextOptions::default().set_indexing_options(indexing));
    (builder.build(), field)
}

fn broken(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::machine(format!("BM25 index: {error}"))
}

/// Returns the number of segments of an index with `rows` rows.
fn segment_count(rows: u64) -> u32 {
    rows.div_ceil(ROWS_PER_SEGMENT).clamp(1, MOST_SEGMENTS) as u32
}

/// Returns the segment of a row.
fn segment_of(row: u64, segments: u32) -> usize {
    ((row / u64::from(BLOCK)) % u64::from(segments)) as usize
}

/// Returns the row of a segment's document.
fn row_of(document: u32, segment: u32, segments: u32) -> u32 {
    (document / BLOCK * segments + segment) * BLOCK + document % BLOCK
}

/// Indexes the chunks into `folder` and stores them in `chunks`.
pub(crate) fn build(
    params: &Bm25Params,
    rows: &RowsInput,
    folder: &Path,
    chunks: &mut ChunkWriter,
    context: &Context,
) -> Result<(), OperatorError> {
    let folder = folder.join(FOLDER);
    fs_err::create_dir_all(&folder)?;
    let segments = segment_count(rows.rows);
    let workers = context.threads().min(segments as usize);
    std::thread::scope(|scope| {
        let (mut senders, mut handles) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            // A short queue: a slow worker holds the reader back before batches fill the memory.
            let (sender, receiver) = sync_channel(16);
            let writers = open_writers(params, &folder, (worker..segments as usize).step_by(workers));
            senders.push(sender);
            handles.push(scope.spawn(move || write_segments(writers?, workers, &receiver)));
        }
        let dealt = deal(rows, segments, &senders, chunks, context);
        // The workers finish when their channels are closed.
        drop(senders);
        // The error of a worker comes first: `deal` ends early without one when a worker is gone.
        for handle in handles {
            handle.join().map_err(|_| OperatorError::engine("an indexing thread panicked"))??;
        }
        dealt
    })?;
    name_segments(&folder, segments)
}

type Writers = Vec<SingleSegmentIndexWriter>;

/// The number of a segment, and rows for it.
type Portion = (usize, arrow::array::RecordBatch);

fn open_writers(
    params: &Bm25Params,
    folder: &Path,
    segments: impl Iterator<Item = usize>,
) -> Result<Writers, OperatorError> {
    let mut writers = Vec::new();
    for segment in segments {
        let folder = building(folder, segment);
        fs_err::create_dir_all(&folder)?;
        let directory = MmapDirectory::open(&folder).map_err(broken)?;
        let tokenizers = tantivy::tokenizer::TokenizerManager::new();
        tokenizers.register(TOKENIZER, analyzer(params.language));
        // Nothing is stored in Tantivy: `chunks.bin` holds the contents.
        let settings = IndexSettings {
            docstore_compression: tantivy::store::Compressor::None,
            docstore_compress_dedicated_thread: false,
            ..IndexSettings::default()
        };
        let builder = Index::builder().schema(schema().0).tokenizers(tokenizers).settings(settings);
        writers.push(builder.single_segment_index_writer(directory, WRITER_BYTES).map_err(broken)?);
    }
    Ok(writers)
}

fn building(folder: &Path, segment: usize) -> PathBuf {
    folder.join(format!("building-{segment}"))
}

/// Distributes the rows to the segments' writers, block by block.
fn deal(
    rows: &RowsInput,
    segments: u32,
    writers: &[SyncSender<Portion>],
    chunks: &mut ChunkWriter,
    context: &Context,
) -> Result<(), OperatorError> {
    let mut row = 0u64;
    for batch in rows.batches() {
        context.check_cancelled()?;
        let batch = batch?;
        chunks.write(&batch)?;
        let mut start = 0;
        while start < batch.num_rows() {
            let block_left = u64::from(BLOCK) - row % u64::from(BLOCK);
            let length = (batch.num_rows() - start).min(block_left as usize);
            let segment = segment_of(row, segments);
            // A failed writer closes its channel; joining it reports the error.
            if writers[segment % writers.len()].send((segment, batch.slice(start, length))).is_err() {
                return Ok(());
            }
            start += length;
            row += length as u64;
        }
        context.progress().set(row, rows.rows, "chunks");
    }
    Ok(())
}

fn write_segments(mut writers: Writers, workers: usize, portions: &Receiver<Portion>) -> Result<(), OperatorError> {
    let field = schema().1;
    for (segment, rows) in portions {
        // This worker has every `workers`th segment.
        let writer = &mut writers[segment / workers];
        for text in text_column(&rows, "contents")?.iter().flatten() {
            let mut document = TantivyDocument::new();
            document.add_text(field, text);
            writer.add_document(document).map_err(broken)?;
        }
    }
    for writer in writers {
        writer.finalize().map_err(broken)?;
    }
    Ok(())
}

/// Moves the segments' files into one index and replaces random ids by numbers.
fn name_segments(folder: &Path, segments: u32) -> Result<(), OperatorError> {
    let mut whole: Option<serde_json::Value> = None;
    for segment in 0..segments {
        let built = building(folder, segment as usize);
        let mut meta: serde_json::Value =
            serde_json::from_slice(&fs_err::read(built.join("meta.json"))?).map_err(broken)?;
        let random = meta["segments"][0]["segment_id"].as_str().unwrap_or_default().replace('-', "");
        let name = format!("{:032x}", segment + 1);
        // The files that Tantivy may write for a segment; which ones depends on the schema.
        for extension in ["term", "idx", "pos", "fieldnorm", "fast", "store"] {
            let file = built.join(format!("{random}.{extension}"));
            if file.exists() {
                fs_err::rename(file, folder.join(format!("{name}.{extension}")))?;
            }
        }
        fs_err::remove_dir_all(&built)?;
        // `meta.json` writes ids as UUIDs, names of files without dashes.
        let (head, tail) = name.split_at(20);
        let dashed = [&head[..8], &head[8..12], &head[12..16], &head[16..], tail].join("-");
        meta["segments"][0]["segment_id"] = dashed.into();
        match &mut whole {
            None => whole = Some(meta),
            Some(whole) => {
                let own = meta["segments"][0].take();
                whole["segments"].as_array_mut().ok_or_else(|| broken("meta.json names no segments"))?.push(own);
            }
        }
    }
    let Some(meta) = whole else { return Err(broken("no segments")) };
    // Last: Tantivy opens the segments that it names.
    Ok(fs_err::write(folder.join("meta.json"), serde_json::to_vec_pretty(&meta).map_err(broken)?)?)
}

/// An opened BM25 index.
pub(crate) struct Bm25Index {
    analyzers: Analyzers,
    field: Field,
    segments: Vec<Segment>,
    statistics: Statistics,
    known: KnownTerms,
}

impl Bm25Index {
    /// Opens an index written by [`build`]. Only reads the folder: no lock files.
    pub(crate) fn open(params: &Bm25Params, folder: &Path) -> Result<Self, OperatorError> {
        let directory = MmapDirectory::open(folder.join(FOLDER)).map_err(broken)?;
        let index = Index::open(directory).map_err(broken)?;
        let field = schema().1;
        let mut segments = Vec::new();
        // Of the whole index: a score must not depend on the segment of a passage.
        let (mut documents, mut tokens) = (0, 0);
        for part in index.searchable_segments().map_err(broken)? {
            let reader = SegmentReader::open(&part).map_err(broken)?;
            let segment = Segment::open(&reader, field).map_err(broken)?;
            documents += segment.lengths.len() as u64;
            tokens += segment.tokens;
            segments.push(segment);
        }
        let statistics = Statistics::of(params.k1 as f32, params.b as f32, documents, tokens);
        let (analyzers, known) = (Analyzers::new(params.language), KnownTerms::default());
        Ok(Self { analyzers, field, segments, statistics, known })
    }

    /// Returns at most `pool` rows, best first, ties by row number.
    fn search(&self, query: &str, pool: usize) -> Result<Vec<Row>, OperatorError> {
        let terms = self.analyzers.terms(query);
        let query = TermQuery::new(&terms, self.field, &self.known, &self.segments, &self.statistics);
        let query = query.map_err(broken)?;
        let segments = self.segments.len() as u32;
        let mut rows = Vec::new();
        for found in best(&query, &self.segments, &self.statistics, pool).map_err(broken)? {
            rows.push(Row { row: row_of(found.document, found.segment, segments), score: found.score.into() });
        }
        // More than `pool` rows may come, as rows with the score of the last one are among them.
        rows.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.row.cmp(&b.row)));
        rows.truncate(pool);
        Ok(rows)
    }
}

impl Retriever for Bm25Index {
    fn search_batch(&self, queries: &[&str], pool: usize) -> Result<Lists, OperatorError> {
        each_query(queries.len(), |query| self.search(queries[query], pool))
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::InputArtifact;
    use searchmill_engine::operator::testing::{Harness, rows_input};
    use searchmill_schemas::Chunk;

    use super::*;
    use crate::IndexKind;

    #[test]
    fn rows_are_dealt_in_blocks_and_found_again() {
        let segments = 3;
        let mut next = [0u32; 3];
        for row in 0..10 * BLOCK + 17 {
            let segment = segment_of(u64::from(row), segments);
            assert_eq!(row_of(next[segment], segment as u32, segments), row);
            next[segment] += 1;
        }
        assert_eq!((segment_count(0), segment_count(65_537), segment_count(u64::MAX)), (1, 2, 32));
    }

    /// Tantivy's own search of a copy of the folder (its reader writes lock files).
    fn by_tantivy(folder: &Path, query: &str, k: usize) -> Vec<(u32, f32)> {
        let copy = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(folder.join(FOLDER)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let index = Index::open_in_dir(copy.path()).unwrap();
        let searcher = index.reader().unwrap().searcher();
        let clauses = Analyzers::new(Language::English).terms(query).into_iter().map(|word| {
            let term = tantivy::Term::from_field_text(schema().1, &word);
            let query: Box<dyn tantivy::query::Query> =
                Box::new(tantivy::query::TermQuery::new(term, IndexRecordOption::WithFreqs));
            (tantivy::query::Occur::Should, query)
        });
        let query = tantivy::query::BooleanQuery::new(clauses.collect());
        let top = tantivy::collector::TopDocs::with_limit(k).order_by_score();
        let found = searcher.search(&query, &top).unwrap();
        let segments = searcher.segment_readers().len() as u32;
        let row = |at: tantivy::DocAddress| row_of(at.doc_id, at.segment_ord, segments);
        found.into_iter().map(|(score, at)| (row(at), score)).collect()
    }

    fn chunk(row: u32, text: &str) -> Chunk {
        Chunk {
            id: format!("{row}#0"),
            document_id: row.to_string(),
            position: 0,
            document_chunks: 1,
            title: None,
            text: text.to_owned(),
            contents: text.to_owned(),
            start: 0,
            end: text.len() as i64,
            tokens: 0,
            metadata: None,
        }
    }

    /// Words by Zipf's law, as in real text: common words in most passages, rare ones in a few.
    fn zipf_text(random: &mut impl rand::Rng, words: usize) -> String {
        let word = |_| format!("w{}", (5000f64.powf(random.random::<f64>())) as u32);
        (0..words).map(word).collect::<Vec<_>>().join(" ")
    }

    /// By the formula (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", with Lucene's idf).
    fn by_formula(texts: &[&str], word: &str, k1: f64, b: f64) -> Vec<f64> {
        let (mut lengths, mut frequencies, mut with) = (Vec::new(), Vec::new(), 0.0);
        for text in texts {
            let frequency = text.split(' ').filter(|found| *found == word).count() as f64;
            with += if frequency > 0.0 { 1.0 } else { 0.0 };
            lengths.push(text.split(' ').count() as f64);
            frequencies.push(frequency);
        }
        let all = texts.len() as f64;
        let average = lengths.iter().sum::<f64>() / all;
        let idf = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
        let mut scores = Vec::new();
        for (frequency, length) in frequencies.into_iter().zip(lengths) {
            let norm = k1 * (1.0 - b + b * length / average);
            scores.push(idf * frequency * (k1 + 1.0) / (frequency + norm));
        }
        scores
    }

    #[test]
    fn scores_follow_the_constants() {
        let texts =
            ["mill", "mill mill mill river wheel stone", "river", "mill wheel wheel wheel wheel wheel wheel wheel"];
        let chunks: Vec<_> = texts.iter().zip(0..).map(|(text, row)| chunk(row, text)).collect();
        let InputArtifact::Rows(rows) = rows_input(&chunks) else { unreachable!("rows") };
        let mut orders = std::collections::BTreeSet::new();
        for (k1, b) in [(1.2, 0.75), (1.5, 0.75), (0.9, 0.4), (3.0, 0.0), (0.0, 1.0)] {
            let params = Bm25Params { language: Language::Plain, k1, b };
            let (harness, folder) = (Harness::new(), tempfile::tempdir().unwrap());
            crate::build(&IndexKind::Bm25(params.clone()), &rows, folder.path(), &harness.context()).unwrap();
            let found = Bm25Index::open(&params, folder.path()).unwrap().search("mill", 4).unwrap();
            let wanted = by_formula(&texts, "mill", k1, b);
            for row in &found {
                let apart = (row.score - wanted[row.row as usize]).abs();
                assert!(
                    apart < 1e-5,
                    "k1 {k1} b {b}: row {} has {}, not {}",
                    row.row,
                    row.score,
                    wanted[row.row as usize]
                );
            }
            orders.insert(found.iter().map(|row| row.row).collect::<Vec<_>>());
        }
        assert!(orders.len() > 1, "the constants decide which passage is first");
    }

    #[test]
    fn constants_out_of_range_are_told_and_those_of_lucene_are_in_no_key() {
        for (k1, b) in [(-1.0, 1.5), (f64::MAX, -0.1), (f64::NAN, f64::NAN)] {
            let told = Bm25Params { k1, b, ..Bm25Params::default() }.check("kind.bm25");
            let told: Vec<&str> = told.iter().map(|issue| issue.path.as_str()).collect();
            assert_eq!(told, ["kind.bm25.k1", "kind.bm25.b"], "{k1} {b}");
        }
        assert!(Bm25Params::default().check("kind.bm25").is_empty());
        assert_eq!(serde_json::to_value(Bm25Params::default()).unwrap(), serde_json::json!({"language": "english"}));
    }

    #[test]
    fn results_equal_tantivys_own() {
        use rand::SeedableRng;
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let texts: Vec<String> = (0..70_000).map(|row| zipf_text(&mut random, 5 + row % 40)).collect();
        let chunks: Vec<_> = texts.iter().zip(0..).map(|(text, row)| chunk(row, text)).collect();
        let InputArtifact::Rows(rows) = rows_input(&chunks) else { unreachable!("rows") };
        let (harness, folder) = (Harness::new(), tempfile::tempdir().unwrap());
        crate::build(&IndexKind::Bm25(Bm25Params::default()), &rows, folder.path(), &harness.context()).unwrap();
        let folder = folder.path();
        let index = Bm25Index::open(&Bm25Params::default(), folder).unwrap();
        assert_eq!(index.segments.len(), 2);
        for words in [1, 2, 3, 5, 9, 20, 60] {
            for k in [1, 10, 100] {
                let query = zipf_text(&mut random, words);
                let (ours, theirs) = (index.search(&query, k).unwrap(), by_tantivy(folder, &query, k));
                assert_eq!(ours.len(), theirs.len(), "{query}");
                // To rank all documents, every list is added as a whole; the scores are the same to the last bit.
                assert_eq!(ours, index.search(&query, texts.len()).unwrap()[..ours.len()], "{query}");
                for (ours, (_, theirs)) in ours.iter().zip(&theirs) {
                    assert!((ours.score - f64::from(*theirs)).abs() < 1e-4, "{query}: {} {theirs}", ours.score);
                }
                // Rows may differ only where neighbours in the ranking tie to the last bits.
                let apart = |place: usize| theirs.get(place).map_or(f32::NEG_INFINITY, |found| found.1);
                for place in 0..theirs.len().saturating_sub(1) {
                    let near = |other: usize| (apart(other) - theirs[place].1).abs() < 1e-4;
                    if !near(place + 1) && (place == 0 || !near(place - 1)) {
                        assert_eq!(ours[place].row, theirs[place].0, "{query}");
                    }
                }
            }
        }
    }
}
