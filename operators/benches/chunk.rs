//! Speed of the `chunk` operator: recursive chunks of 200 tokens, rows in to rows out. One JSON line a measurement.
//!
//! ```text
//! MINILM_DIR=… [PEERS_DATA=…] cargo bench -p searchmill-operators --bench chunk -- [THREADS…]
//! ```
//! Documents: `docs_609.jsonl` of `PEERS_DATA` (see ../shared/peers), or 609 documents of 11 kB made here from the
//! 2WikiMultihopQA passages. Every pass opens a fresh kernel, so nothing is remembered from the pass before; the
//! tokenizer is read within the open, which is timed apart.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arrow::array::RecordBatch;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use searchmill_engine::operator::testing::{Harness, inputs, rows_input};
use searchmill_engine::operator::{Kernel, MapKernel, MapOutput, OperatorError};
use searchmill_schemas::{Document, to_batch};
use serde_json::{Value, json};

type Failure = Box<dyn Error>;

const PASSES: usize = 5;
const BATCH_ROWS: usize = 8;

fn main() -> Result<(), Failure> {
    let numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let mut threads: BTreeSet<usize> = numbers.filter(|&count| count > 0).collect();
    if threads.is_empty() {
        threads = [1, 2].into();
    }
    let documents = documents()?;
    for threads in threads {
        let line = measure(&documents, threads)?;
        writeln!(std::io::stdout().lock(), "{line}")?;
    }
    Ok(())
}

fn measure(documents: &[Document], threads: usize) -> Result<Value, Failure> {
    let batches = documents.chunks(BATCH_ROWS).map(to_batch).collect::<Result<Vec<_>, _>>()?;
    let megabytes = documents.iter().map(|document| document.text.len()).sum::<usize>() as f64 / 1e6;
    let (mut seconds, mut opening, mut chunks) = (Vec::new(), 0.0, 0);
    for pass in 0..=PASSES {
        let start = Instant::now();
        let kernel = open(documents)?;
        opening = start.elapsed().as_secs_f64();
        let start = Instant::now();
        chunks = pass_over(kernel.as_ref(), &batches, threads)?;
        if pass > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[PASSES / 2];
    Ok(json!({
        "tool": "searchmill", "version": env!("CARGO_PKG_VERSION"), "task": "chunk_200tok", "n": documents.len(),
        "seconds": median, "seconds_min": seconds[0], "seconds_max": seconds[PASSES - 1], "reps": PASSES,
        "rate": documents.len() as f64 / median, "rate_unit": "docs/s", "mb_per_s": megabytes / median, "mb": megabytes,
        "chunks": chunks, "overlap": 0, "threads": threads, "open_seconds": opening,
    }))
}

fn open(documents: &[Document]) -> Result<std::sync::Arc<dyn MapKernel>, Failure> {
    let model = std::env::var("MINILM_DIR").map_err(|_| "set MINILM_DIR to the folder of all-MiniLM-L6-v2")?;
    let operators = searchmill_operators::all();
    let entry = operators.iter().find(|entry| entry.name == "chunk").ok_or("no operator `chunk`")?;
    let params = json!({"by": "recursive", "size": 200, "count": {"tokenizer": model}});
    let bound = (entry.bind)(params).map_err(|issue| issue.message)?;
    match bound.open(&inputs([("documents", rows_input(documents))]), &Harness::new().context())? {
        Kernel::Map(kernel) => Ok(kernel),
        _ => Err("`chunk` is not a map".into()),
    }
}

/// Chunks all batches on that many threads; gives the number of chunks.
fn pass_over(kernel: &dyn MapKernel, batches: &[RecordBatch], threads: usize) -> Result<usize, OperatorError> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut chunks = 0;
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut output = MapOutput::default();
            kernel.map(batch, &mut output)?;
            chunks += output.batches.iter().map(|(_, batch)| batch.num_rows()).sum::<usize>();
        }
        Ok(chunks)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let gone = |_| Err(OperatorError::engine("a thread panicked"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(gone)).sum()
    })
}

fn documents() -> Result<Vec<Document>, Failure> {
    let peers = std::env::var("PEERS_DATA").map(|folder| PathBuf::from(folder).join("docs_609.jsonl"));
    match peers {
        Ok(file) if file.is_file() => read_documents(&file),
        _ => make_documents(),
    }
}

fn read_documents(file: &Path) -> Result<Vec<Document>, Failure> {
    let text = std::fs::read_to_string(file)?;
    let document = |line: &str| {
        let row: Value = serde_json::from_str(line)?;
        let (title, body) = row["contents"].as_str().and_then(|text| text.split_once('\n')).ok_or("no title line")?;
        Ok(new_document(row["id"].as_str().unwrap_or_default().to_owned(), title, body.to_owned()))
    };
    text.lines().map(document).collect()
}

/// Passages in a fixed random order, joined by blank lines to documents of 11,000 characters and more.
fn make_documents() -> Result<Vec<Document>, Failure> {
    const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/2wikimultihopqa/corpus_6119.json");
    let text = std::fs::read_to_string(CORPUS);
    let text = text.map_err(|error| format!("SKIPPED: this bench needs PEERS_DATA, or {CORPUS} ({error})"))?;
    let mut passages: Vec<Value> = serde_json::from_str(&text)?;
    passages.shuffle(&mut ChaCha8Rng::seed_from_u64(1234));
    let mut order = passages.iter().cycle();
    let mut documents = Vec::new();
    for id in 0..609 {
        let (mut body, mut title) = (String::new(), "");
        while body.len() < 11_000 {
            let passage = order.next().ok_or("the corpus is empty")?;
            title = passage["title"].as_str().unwrap_or_default();
            body = body + passage["text"].as_str().unwrap_or_default() + "\n\n";
        }
        documents.push(new_document(id.to_string(), title, body));
    }
    Ok(documents)
}

fn new_document(id: String, title: &str, text: String) -> Document {
    Document { id, title: Some(title.to_owned()), text, metadata: None }
}
