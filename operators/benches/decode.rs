//! Greedy decoding of a small model, as many rows at once as asked for.
//!
//! ```text
//! cargo bench --bench decode -- --model TINY_QWEN3 [--batch 1] [--new 128] [--prompt 32] [--threads 2] [--reps 5]
//! ```
//! `TINY_QWEN3` is the folder of the peers' `make_tiny_qwen3.py`; the peer is their `bench_train.py --task gen`. Prints one
//! line of JSON: tokens a second, the prompt's reading included.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use searchmill_operators::model::device::Compute;
use searchmill_operators::model::inference::{Opening, Request, Sampling, TextModel};

fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| *argument != format!("--{name}"));
    arguments.nth(1)
}

fn number(name: &str, default: usize) -> usize {
    option(name).map_or(default, |text| text.parse().expect("a number"))
}

/// One pass: all rows at once; tokens drawn.
async fn pass(model: &TextModel, batch: usize, prompt: usize, new: usize) -> usize {
    let requests = (0..batch).map(|row| {
        let prompt = (0..prompt).map(|at| ((row * prompt + at) * 7919 % 8000 + 3) as u32).collect();
        model.complete(Request {
            prompt,
            sampling: Sampling::GREEDY,
            seed: 0,
            max_tokens: new,
            stops: Vec::new(),
            stop_tokens: Arc::from([]),
            log_probabilities: false,
            stream: false,
        })
    });
    join_all(requests).await.into_iter().map(|done| done.expect("a completion").drawn).sum()
}

fn main() {
    let folder = PathBuf::from(option("model").expect("--model FOLDER"));
    let (batch, new, prompt) = (number("batch", 1), number("new", 128), number("prompt", 32));
    let threads = number("threads", 2);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut seconds: Vec<f64> = Vec::new();
    for _ in 0..=number("reps", 5) {
        // Opened anew, so that no prompt has been read before.
        let opening = Opening { rows: batch, context: None, threads, memory: None, compute: Compute::cpu() };
        let model = TextModel::open(&folder, None, opening).expect("a model");
        let started = Instant::now();
        assert_eq!(runtime.block_on(pass(&model, batch, prompt, new)), batch * new);
        seconds.push(started.elapsed().as_secs_f64());
    }
    let mut passes = seconds.split_off(1);
    passes.sort_by(f64::total_cmp);
    let median = passes[passes.len() / 2];
    let line = serde_json::json!({"task": format!("generate_tiny_qwen3_b{batch}"), "tool": "searchmill", "threads": threads,
        "seconds": median, "rate": (batch * new) as f64 / median, "unit": "tokens/s"});
    println!("{line}");
}
