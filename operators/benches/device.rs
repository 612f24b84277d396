//! Models on a GPU: whether they compute what the CPU computes, and how fast they are.
//!
//! ```text
//! cargo bench --bench device -- --cpu --tiny                  # anywhere: the same code at a small size
//! CUDA_HOME=… cargo build --release --features cuda --benches # then scripts/check_cuda.sh, which builds nothing
//! ```
//! Prints JSON lines. Shares are of `--peak-tflops` (bf16 without sparsity, default 989) and `--peak-gbs` (default 4800):
//! NVIDIA's figures for an H200.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::Path;

use searchmill_engine::operator::testing::{Harness, Outcome, inputs, tree_input};
use searchmill_engine::operator::{InputArtifact, RowsInput, TreeKind};
use searchmill_models::device::{Compute, Precision};
use searchmill_models::inference::{Completion, Distribution, Opening, Request, Sampling, TextModel};
use searchmill_models::throughput::{generation, tuning};
use searchmill_schemas::RecordKind;
use serde_json::{Value, json};

fn flag(name: &str) -> bool {
    std::env::args().any(|argument| argument == format!("--{name}"))
}

fn number(name: &str, default: f64) -> f64 {
    let mut arguments = std::env::args().skip_while(|argument| *argument != format!("--{name}"));
    arguments.nth(1).map_or(default, |text| text.parse().expect("a number"))
}

fn shape(hidden: usize, wide: usize, layers: usize, heads: usize, (head_dim, vocabulary): (usize, usize)) -> String {
    json!({"model_type": "qwen3", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads.min(8),
        "head_dim": head_dim, "max_position_embeddings": 40960, "rope_theta": 1e6, "tie_word_embeddings": true})
    .to_string()
}

/// The shapes of Qwen3-0.6B and Qwen3-4B, or a tiny one.
fn shapes() -> Vec<(&'static str, String)> {
    if flag("tiny") {
        return vec![("tiny", shape(64, 160, 2, 4, (16, 512)))];
    }
    let sizes = (128, 151_936);
    vec![("qwen3-0.6b", shape(1024, 3072, 28, 16, sizes)), ("qwen3-4b", shape(2560, 9728, 36, 32, sizes))]
}

struct Bench {
    compute: Compute,
    peak_flops: f64,
    peak_bytes: f64,
}

impl Bench {
    fn say(&self, mut line: Value) {
        line["device"] = self.compute.name().into();
        println!("{line}");
    }

    fn generate(&self, name: &str, config: &str) {
        let (prompt, new) = if flag("tiny") { (32, 8) } else { (512, 128) };
        for batch in [1, 16, 64] {
            match generation(config, &self.compute, batch, prompt, new) {
                Ok(found) => {
                    let base = json!({"model": name, "batch": batch, "prompt": prompt, "new": new});
                    let mut line = base.clone();
                    line["task"] = "prefill".into();
                    line["tokens_per_second"] = found.prefill_tokens_per_second.into();
                    line["share_of_matrix_peak"] = (found.prefill_flops / self.peak_flops).into();
                    self.say(line);
                    let mut line = base;
                    line["task"] = "decode".into();
                    line["tokens_per_second"] = found.decode_tokens_per_second.into();
                    line["share_of_bandwidth"] = (found.decode_bytes_per_second / self.peak_bytes).into();
                    self.say(line);
                }
                Err(error) => {
                    self.say(json!({"task": "decode", "model": name, "batch": batch, "failed": error.message}));
                }
            }
        }
    }

    fn tune(&self, name: &str, config: &str) {
        let lengths = if flag("tiny") { [64, 256] } else { [2048, 8192] };
        for tokens in lengths {
            for checkpointing in [false, true] {
                let mut line =
                    json!({"task": "sft_lora", "model": name, "tokens": tokens, "checkpointing": checkpointing});
                match tuning(config, &self.compute, tokens, 3, checkpointing) {
                    Ok(found) => {
                        line["tokens_per_second"] = found.tokens_per_second.into();
                        line["share_of_matrix_peak"] = (found.flops / self.peak_flops).into();
                        line["losses"] = json!([found.losses.0, found.losses.1]);
                    }
                    Err(error) => line["failed"] = error.message.into(),
                }
                self.say(line);
            }
        }
    }
}

/// A small model and something to teach it.
struct Small {
    harness: Harness,
    model: std::path::PathBuf,
    examples: InputArtifact,
}

fn run(harness: &Harness, name: &str, params: Value, bound: &searchmill_engine::operator::Inputs) -> Outcome {
    let operators = searchmill_operators::all();
    let operator = operators.iter().find(|operator| operator.name == name).expect("an operator");
    harness.run(operator, params, bound).unwrap_or_else(|error| panic!("{name}: {}", error.message))
}

impl Small {
    fn new() -> Self {
        let harness = Harness::new();
        let world = run(&harness, "generate-world", json!({"documents": 200, "questions": 40}), &inputs([]));
        let rows = |outcome: &Outcome, port: &str, kind: RecordKind| {
            let batch = outcome.batch(port);
            InputArtifact::Rows(RowsInput::from_batches(kind, batch.schema(), vec![batch]))
        };
        let documents = rows(&world, "documents", RecordKind::Document);
        let sizes = json!({"size": 80, "count": "words"});
        let chunks = run(&harness, "chunk", sizes, &inputs([("documents", documents)]));
        let chunks = rows(&chunks, "chunks", RecordKind::Chunk);
        let index = run(&harness, "index", json!({"kind": "bm25"}), &inputs([("chunks", chunks)]));
        let questions = rows(&world, "questions", RecordKind::Question);
        let bound = inputs([("questions", questions), ("search", tree_input(TreeKind::Index, &index.trees["index"]))]);
        let rollouts = run(&harness, "rollout", json!({"policy": {"evidence": {}}}), &bound);
        let rollouts = rows(&rollouts, "trajectories", RecordKind::Trajectory);
        let swift = run(&harness, "convert-to-swift", json!({}), &inputs([("trajectories", rollouts)]));
        let examples = rows(&swift, "examples", RecordKind::Example);
        let params = json!({"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocab": 1000});
        let made = run(&harness, "init-model", params, &inputs([("corpus", examples.clone())]));
        Self { model: made.trees["model"].clone(), harness, examples }
    }

    fn losses(&mut self, gpus: u32, tuning: &Value) -> Vec<f64> {
        use arrow::array::AsArray;
        self.harness.gpus = gpus;
        let bound = inputs([("examples", self.examples.clone()), ("model", tree_input(TreeKind::Model, &self.model))]);
        let params = json!({"tuning": tuning, "dtype": "f32", "max_steps": if flag("tiny") { 2 } else { 10 }, "learning_rate": 3e-3, "batch_size": 1, "max_length": 4096});
        let steps = run(&self.harness, "train", params, &bound).batch("steps");
        let losses = steps.column_by_name("loss").expect("losses");
        losses.as_primitive::<arrow::datatypes::Float64Type>().values().to_vec()
    }
}

fn greedy(folder: &Path, compute: &Compute) -> Vec<Completion> {
    let opening = Opening { rows: 16, context: Some(512), threads: 2, memory: None, compute: compute.clone() };
    let model = TextModel::open(folder, None, opening).expect("a model");
    let request = |row: usize| Request {
        prompt: (0..5 + row * 7).map(|at| (300 + (row * 31 + at * 17) % 600) as u32).collect(),
        sampling: Sampling::GREEDY,
        seed: 0,
        max_tokens: 24,
        stops: Vec::new(),
        keep_stop: false,
        stop_tokens: std::sync::Arc::from([]),
        log_probabilities: Some(Distribution::Model),
        alternatives: 0,
        stream: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let all = futures::future::join_all((0..16).map(|row| model.complete(request(row))));
    runtime.block_on(all).into_iter().map(|done| done.expect("a completion")).collect()
}

/// Tokens that differ, and the largest difference of their log-probabilities where all before were the same.
fn apart(one: &[Completion], other: &[Completion]) -> (usize, f32) {
    let (mut differ, mut most) = (0, 0.0_f32);
    for (one, other) in one.iter().zip(other) {
        let same = one.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
        differ += one.tokens.len() - same;
        let numbers = one.log_probabilities.iter().zip(&other.log_probabilities).take(same);
        most = numbers.fold(most, |most, (a, b)| most.max((a - b).abs()));
    }
    (differ, most)
}

/// The device beside the CPU's loops; false when they are too far apart.
fn is_right(compute: &Compute) -> bool {
    let (mut small, mut fine) = (Small::new(), true);
    let loops = greedy(&small.model, &Compute::cpu());
    let mut report = |what: &str, found: f64, most: f64, more: Value| {
        fine &= found <= most;
        println!(
            "{}",
            json!({"task": "correctness", "what": what, "found": found, "most": most, "ok": found <= most, "more": more})
        );
    };
    let gpu = !flag("cpu");
    if gpu {
        let found = greedy(&small.model, &Compute::on_gpu(Precision::F32).expect("a GPU"));
        let (differ, most) = apart(&loops, &found);
        report("log-probabilities of greedy tokens, f32", f64::from(most), 1e-3, json!({"tokens_that_differ": differ}));
    }
    let half = if gpu { compute.clone() } else { Compute::on_cpu(Precision::Bf16) };
    let (differ, most) = apart(&loops, &greedy(&small.model, &half));
    report("log-probabilities of greedy tokens, bf16", f64::from(most), 0.1, json!({"tokens_that_differ": differ}));
    for tuning in [json!("full"), json!({"lora": {"dropout": 0.0}})] {
        let (cpu, other) = (small.losses(0, &tuning), small.losses(u32::from(gpu), &tuning));
        let most = cpu.iter().zip(&other).map(|(a, b)| (a - b).abs() / a).fold(0.0, f64::max);
        report("losses of steps in f32", most, 1e-3, json!({"tuning": tuning, "last": other.last()}));
    }
    fine
}

fn main() {
    let compute = if flag("cpu") {
        Compute::on_cpu(Precision::Bf16)
    } else {
        Compute::on_gpu(Precision::Bf16)
            .unwrap_or_else(|error| panic!("{}\n{}", error.message, error.help.unwrap_or_default()))
    };
    let fine = is_right(&compute);
    let bench = Bench {
        compute,
        peak_flops: number("peak-tflops", 989.0) * 1e12,
        peak_bytes: number("peak-gbs", 4800.0) * 1e9,
    };
    for (name, config) in shapes() {
        bench.generate(name, &config);
        bench.tune(name, &config);
    }
    assert!(fine, "the device does not compute what the CPU computes");
}
