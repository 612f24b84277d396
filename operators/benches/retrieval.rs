//! Search indexes over 100,000 passages: building and asking them, and encoding passages.
//!
//! ```text
//! [PEERS_DATA=…] [MINILM_DIR=…] cargo bench -p searchmill-operators --bench retrieval -- [--task bm25] [--size 100000] [--reps 5]
//! ```
//! Tasks: `bm25_index`, `bm25_query_batch`, `bm25_query_single`, `dense_build`, `dense_query_batch`,
//! `dense_query_single` (flat, hnsw, ivf), `embed_minilm_b32`; `--task` takes the beginning of a name. `PEERS_DATA` is
//! the folder that the peers' `make_data.py` writes (`corpus_100k.jsonl`, `questions.jsonl`, and, if it is there,
//! `vec_100k_768.npy`; without it the vectors are the hashing encoder's). One line of JSON a measurement, with the
//! fields of the peers' `common.emit`. Queries come back as whole hits: ids, titles, contents and sources.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use searchmill_engine::operator::testing::{Harness, inputs, rows_input};
use searchmill_engine::operator::{TreeInput, TreeKind, entry};
use searchmill_models::device::Compute;
use searchmill_models::{BertEncoder, Encoder, HashingEncoder, HashingParams, Role};
use searchmill_operators::index::Index;
use searchmill_retrieval::{FaissIndex, Metric, Search, SearchSettings};
use searchmill_schemas::Chunk;
use serde_json::{Value, json};

const K: usize = 10;
const DIMENSIONS: usize = 768;

fn main() {
    let task = text_option("--task").unwrap_or_default();
    let wanted = |name: &str| name.starts_with(&task) || task.starts_with(name);
    let Some(folder) = std::env::var_os("PEERS_DATA").map(PathBuf::from) else {
        println!("{}", json!({"skipped": "PEERS_DATA names no folder"}));
        return;
    };
    let corpus = lines(&folder.join("corpus_100k.jsonl"), "contents", number_option("--size", 100_000));
    let questions = lines(&folder.join("questions.jsonl"), "question", 1000);
    if wanted("bm25") {
        bm25(&corpus, &questions);
    }
    if wanted("dense") {
        dense(&folder, &corpus, &questions);
    }
    if wanted("embed") {
        embed(&corpus);
    }
}

fn bm25(corpus: &[String], questions: &[String]) {
    let harness = Harness::new();
    let chunks: Vec<Chunk> = corpus.iter().zip(0..).map(|(text, row)| chunk(row, text)).collect();
    let bound = inputs([("chunks", rows_input(&chunks))]);
    let build =
        || harness.run(&entry::<Index>(), json!({"kind": "bm25"}), &bound).expect("an index").trees["index"].clone();
    let (timing, path) = measure(build);
    emit("bm25_index", "bm25", corpus.len(), "docs/s", &timing, &json!({}));
    let tree = TreeInput { kind: TreeKind::Index, path, digest: String::new() };
    let settings = SearchSettings { top_k: K, ..SearchSettings::default() };
    let search = Search::open(&[&tree], &settings, &harness.context()).expect("an opened index");
    let asked: Vec<&str> = questions.iter().map(String::as_str).collect();
    let (timing, _) = measure(|| search.search_batch(&asked).expect("hits"));
    emit("bm25_query_batch", "bm25", asked.len(), "queries/s", &timing, &json!({"docs": corpus.len(), "k": K}));
    let (timing, latencies) = measure(|| each(&asked, |query| drop(search.search(query).expect("hits"))));
    emit("bm25_query_single", "bm25", asked.len(), "queries/s", &timing, &percentiles(latencies));
}

fn dense(folder: &Path, corpus: &[String], questions: &[String]) {
    let encoder = HashingEncoder::new(&HashingParams { dimensions: DIMENSIONS, ..HashingParams::default() });
    let encode = |texts: &[String], role| {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        encoder.encode(&texts, role).expect("vectors")
    };
    let rows = npy(&folder.join("vec_100k_768.npy")).unwrap_or_else(|| encode(corpus, Role::Passage));
    let queries = npy(&folder.join("vec_queries_768.npy")).unwrap_or_else(|| encode(questions, Role::Query));
    let (batch, singles) = (&queries[..256 * DIMENSIONS], &queries[..300 * DIMENSIONS]);
    let scratch = Harness::new();
    let mut truth = Vec::new();
    for factory in ["Flat", "HNSW32", "IVF1024,Flat"] {
        let path = scratch.path().join("vectors");
        let start = Instant::now();
        build(factory, &rows).write(&path).expect("a written index");
        let timing = vec![start.elapsed().as_secs_f64()];
        emit("dense_build", factory, rows.len() / DIMENSIONS, "vectors/s", &timing, &json!({}));
        let index = FaissIndex::read(&path, factory, 16, 64).expect("an opened index");
        let find = |queries: &[f32]| index.search(queries, K, Metric::InnerProduct).expect("rows");
        let (timing, found) = measure(|| find(batch));
        if truth.is_empty() {
            truth.clone_from(&found);
        }
        let extra = json!({"vectors": rows.len() / DIMENSIONS, "recall_at_k": recall(&found, &truth)});
        emit("dense_query_batch", factory, found.len(), "queries/s", &timing, &extra);
        let asked: Vec<&[f32]> = singles.chunks(DIMENSIONS).collect();
        let (timing, latencies) = measure(|| each(&asked, |query| drop(find(query))));
        emit("dense_query_single", factory, asked.len(), "queries/s", &timing, &percentiles(latencies));
    }
}

fn build(factory: &str, rows: &[f32]) -> FaissIndex {
    let mut index = FaissIndex::create(factory, DIMENSIONS, Metric::InnerProduct).expect("an index");
    if !index.is_trained() {
        index.train(rows).expect("a trained index");
    }
    index.add(rows).expect("rows added");
    index
}

fn recall(found: &[Vec<(u32, f32)>], truth: &[Vec<(u32, f32)>]) -> f64 {
    let both = found.iter().zip(truth);
    let same = both.flat_map(|(f, t)| f.iter().filter(|(row, _)| t.iter().any(|(other, _)| other == row))).count();
    same as f64 / (found.len() * K) as f64
}

/// Passages of about 200 tokens: 160 words of the corpus each.
fn embed(corpus: &[String]) {
    let Some(model) = text_env("MINILM_DIR") else { return };
    let params = serde_json::from_value(json!({"model": model, "max_length": 256})).expect("params");
    let encoder = BertEncoder::open(Path::new(&model), &params, &Compute::cpu()).expect("a model");
    let words: Vec<&str> = corpus.iter().flat_map(|text| text.split_whitespace()).take(256 * 145).collect();
    let passages: Vec<String> = words.chunks(145).map(|words| words.join(" ")).collect();
    let passages: Vec<&str> = passages.iter().map(String::as_str).collect();
    let (timing, _) = measure(|| encoder.encode(&passages, Role::Passage).expect("vectors"));
    emit("embed_minilm_b32", "bert", passages.len(), "passages/s", &timing, &json!({"words": 145}));
}

fn chunk(row: usize, contents: &str) -> Chunk {
    Chunk {
        id: format!("{row}#0"),
        document_id: row.to_string(),
        position: 0,
        document_chunks: 1,
        title: None,
        text: contents.to_owned(),
        contents: contents.to_owned(),
        start: 0,
        end: contents.len() as i64,
        tokens: 0,
        metadata: None,
    }
}

/// Seconds of each pass after one to warm up, sorted.
fn measure<T>(mut pass: impl FnMut() -> T) -> (Vec<f64>, T) {
    let mut last = pass();
    let mut seconds: Vec<f64> = (0..number_option("--reps", 5).max(1))
        .map(|_| {
            let start = Instant::now();
            last = pass();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    (seconds, last)
}

/// Milliseconds of each query.
fn each<Q: Copy>(queries: &[Q], mut ask: impl FnMut(Q)) -> Vec<f64> {
    let timed = queries.iter().map(|query| {
        let start = Instant::now();
        ask(*query);
        start.elapsed().as_secs_f64() * 1e3
    });
    timed.collect()
}

fn percentiles(mut latencies: Vec<f64>) -> Value {
    latencies.sort_by(f64::total_cmp);
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    json!({"k": K, "p50_ms": at(0.5), "p99_ms": at(0.99)})
}

fn emit(task: &str, index: &str, n: usize, unit: &str, seconds: &[f64], extra: &Value) {
    let median = seconds[seconds.len() / 2];
    let mut line = json!({
        "tool": "searchmill", "version": env!("CARGO_PKG_VERSION"), "task": task, "index": index, "n": n,
        "seconds": median, "seconds_min": seconds[0], "seconds_max": seconds[seconds.len() - 1], "reps": seconds.len(),
        "rate": n as f64 / median, "rate_unit": unit, "threads": std::thread::available_parallelism().map_or(1, Into::into),
        "optimised": !cfg!(debug_assertions),
    });
    for (name, value) in extra.as_object().into_iter().flatten() {
        line[name] = value.clone();
    }
    println!("{line}");
}

fn lines(path: &Path, field: &str, most: usize) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let field =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")[field].as_str().unwrap_or_default().to_owned();
    text.lines().take(most).map(field).collect()
}

/// The numbers of a little-endian float32 `.npy` file.
fn npy(path: &Path) -> Option<Vec<f32>> {
    let bytes = std::fs::read(path).ok()?;
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    Some(bytes[header..].as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect())
}

fn text_option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

fn text_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number_option(name: &str, default: usize) -> usize {
    text_option(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} wants a number, not {text}")))
}
