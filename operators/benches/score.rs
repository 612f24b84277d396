//! Answer metrics over 100,000 (prediction, golden answers) pairs: em, f1, acc, precision and recall of each.
//!
//! ```text
//! [PEERS_DATA=…] cargo bench -p searchmill-operators --bench score -- [--size 100000] [--reps 5] [--threads 1]
//! ```
//! `PEERS_DATA` holds the `pairs_100k.jsonl` of the peers' `make_data.py`; without it, pairs of the same make are mixed
//! from the real questions under `../shared/data`. One line of JSON, with the fields of the peers' `common.emit`.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use rayon::prelude::*;
use searchmill_text::answer_metrics::{AnswerScores, answer_scores};
use serde_json::{Value, json};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");

struct Pair {
    prediction: String,
    golden: Vec<String>,
}

fn main() {
    let size = option("--size", 100_000);
    let (reps, threads) = (option("--reps", 5).max(1), option("--threads", 1));
    let base = match std::env::var_os("PEERS_DATA") {
        Some(folder) => read(&PathBuf::from(folder).join("pairs_100k.jsonl"), "pred", "golden_answers"),
        None => mixed(),
    };
    assert!(!base.is_empty(), "SKIPPED: this bench needs PEERS_DATA, or the files below {SHARED}");
    let pairs: Vec<&Pair> = (0..size).map(|place| &base[place % base.len()]).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
    let mut means = pool.install(|| score(&pairs));
    let mut seconds: Vec<f64> = (0..reps)
        .map(|_| {
            let start = Instant::now();
            means = pool.install(|| score(&pairs));
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[reps / 2];
    let mut line = json!({
        "tool": "searchmill", "version": env!("CARGO_PKG_VERSION"), "task": "score_em_f1_acc_p_r", "n": size,
        "seconds": median, "seconds_min": seconds[0], "seconds_max": seconds[reps - 1], "reps": reps,
        "threads": threads, "rate": size as f64 / median, "rate_unit": "rows/s",
    });
    for (name, mean) in AnswerScores::NAMES.iter().zip(means) {
        line[format!("mean_{name}")] = json!(mean);
    }
    println!("{line}");
}

/// Means of the five metrics.
fn score(pairs: &[&Pair]) -> [f64; 5] {
    let add = |a: [f64; 5], b: [f64; 5]| std::array::from_fn(|metric| a[metric] + b[metric]);
    let scored = pairs.par_iter().with_min_len(1024).map(|pair| answer_scores(&pair.prediction, &pair.golden).values());
    scored.reduce(|| [0.0; 5], add).map(|sum| sum / pairs.len().max(1) as f64)
}

/// Real predictions of R1-Searcher, and NQ's several golden answers with predictions shaped after them.
fn mixed() -> Vec<Pair> {
    let mut pairs = read(&Path::new(SHARED).join("r1_searcher/eval_bamboogle_qwen.jsonl"), "pred_ans", "answer");
    let real: Vec<String> = pairs.iter().map(|pair| pair.prediction.clone()).collect();
    let questions = read(&Path::new(SHARED).join("nq_open/NQ-open.dev.jsonl"), "question", "answer");
    for (place, Pair { golden, .. }) in questions.into_iter().enumerate() {
        let words = golden.first().cloned().unwrap_or_default();
        let cut = words.rsplit_once(' ').map_or("", |(kept, _)| kept);
        let prediction = match place % 4 {
            0 => words,
            1 => format!("the {cut}"),
            2 => real.get(place % real.len().max(1)).cloned().unwrap_or_default(),
            _ => format!("It is {words}."),
        };
        pairs.push(Pair { prediction, golden });
    }
    pairs
}

/// Pairs of a JSONL file; none where it is missing.
fn read(path: &Path, prediction: &str, golden: &str) -> Vec<Pair> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).ok()?;
        let golden = match &row[golden] {
            Value::String(one) => vec![one.clone()],
            many => serde_json::from_value(many.clone()).ok()?,
        };
        Some(Pair { prediction: row[prediction].as_str().unwrap_or_default().to_owned(), golden })
    };
    text.lines().filter_map(row).collect()
}

fn option(name: &str, default: usize) -> usize {
    let arguments: Vec<String> = std::env::args().collect();
    let value = arguments.iter().position(|argument| argument == name).and_then(|place| arguments.get(place + 1));
    value.and_then(|value| value.parse().ok()).unwrap_or(default)
}
