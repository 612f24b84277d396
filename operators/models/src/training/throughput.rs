//! Throughput of training an adapter on a model with random weights.

use std::time::Instant;

use searchmill_engine::operator::OperatorError;

use super::example::Example;
use super::objective::Sft;
use super::optimizer::{AdamParams, AdamW, Gradients, norm};
use super::step::{self, Settings};
use super::student::{LoraParams, Student};
use crate::decoder::failed;
use crate::device::Compute;
use crate::throughput::{Drawn, wait};

/// Measured throughput of training.
#[derive(Clone, Copy, Debug)]
pub struct Tuned {
    /// Trained tokens per second.
    pub tokens_per_second: f64,
    /// Floating-point operations per second, without those that recompute activations.
    pub flops: f64,
    /// Losses of the first and the last step.
    pub losses: (f64, f64),
}

/// Measures LoRA steps (rank 16, all linear layers) on one text of `tokens` tokens, all of them learnt. `config` is the
/// text of a `config.json`.
///
/// # Errors
/// When `config` is invalid, or the device fails.
pub fn tuning(
    config: &str,
    compute: &Compute,
    tokens: usize,
    steps: usize,
    checkpointing: bool,
) -> Result<Tuned, OperatorError> {
    let drawn = Drawn::new(config, compute)?;
    let vocabulary = drawn.config.vocab_size;
    let (mapped, head, attention) = (drawn.mapped(), drawn.head(), drawn.attention(tokens as f64 / 2.0));
    let lora = LoraParams { rank: 16, dropout: 0.0, ..LoraParams::default() };
    let student = Student::adapted(drawn.decoder, &lora, 1, compute)?;
    let text = Example {
        id: String::new(),
        question: String::new(),
        tokens: (0..tokens).map(|at| (at * 7919 % vocabulary) as u32).collect(),
        learnt: vec![true; tokens],
        weight: 1.0,
        sampled: None,
        paired: None,
    };
    let (examples, mut adam, mut losses) = ([text], AdamW::new(AdamParams::default()), Vec::new());
    let settings = Settings { objective: &Sft::default(), pass_tokens: tokens, checkpointing, dropout: None };
    let mut started = Instant::now();
    for step in 0..=steps {
        if step == 1 {
            // The first step is not measured: it compiles kernels and reserves memory.
            wait(compute)?;
            started = Instant::now();
        }
        let mut gradients = Gradients::new();
        let outcome = step::learn(&student, &[0], &examples, settings, &mut gradients).map_err(failed)?;
        norm(&gradients).map_err(failed)?;
        adam.step(&student.weights, &gradients, 1e-4, 1.0).map_err(failed)?;
        losses.push(outcome.loss);
    }
    wait(compute)?;
    let seconds = started.elapsed().as_secs_f64() / steps.max(1) as f64;
    // The forward pass, and the backward pass through frozen weights.
    let flops = tokens as f64 * (4.0 * (mapped + head) + 3.0 * attention);
    let losses = (losses[0], losses[losses.len() - 1]);
    Ok(Tuned { tokens_per_second: tokens as f64 / seconds, flops: flops / seconds, losses })
}
