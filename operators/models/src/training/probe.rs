//! The speed of training an adapter on a model with random weights.

use std::time::Instant;

use searchmill_engine::operator::OperatorError;

use super::example::Example;
use super::gradient::{self, Settings};
use super::optimizer::{AdamParams, AdamW, Gradients, norm};
use super::student::{LoraParams, Student, failed};
use crate::device::Compute;
use crate::probe::{Drawn, wait};

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Tuned {
    /// Tokens read and learnt a second.
    pub tokens_per_second: f64,
    /// Operations a second that the training needs: those of computing activations again are not counted.
    pub flops: f64,
    /// The loss of the first step and of the last.
    pub losses: (f64, f64),
}

/// Steps of LoRA (rank 16 on all linear maps) on one text of so many tokens, all of them learnt. `config` is the text of
/// a `config.json`.
///
/// # Errors
/// When the shape is none, or the device fails.
pub fn tuning(
    config: &str,
    compute: &Compute,
    (tokens, steps): (usize, usize),
    checkpointing: bool,
) -> Result<Tuned, OperatorError> {
    let drawn = Drawn::new(config, compute)?;
    let vocabulary = drawn.config.vocab_size;
    let (mapped, head, heard) = (drawn.mapped(), drawn.head(), drawn.heard(tokens as f64 / 2.0));
    let lora = LoraParams { rank: 16, dropout: 0.0, ..LoraParams::default() };
    let student = Student::adapted(drawn.decoder, &lora, 1, compute)?;
    let text = Example {
        id: String::new(),
        question: String::new(),
        tokens: (0..tokens).map(|at| (at * 7919 % vocabulary) as u32).collect(),
        learnt: vec![true; tokens],
        weight: 1.0,
        context: 0.0,
    };
    let (examples, mut adam, mut losses) = ([text], AdamW::new(AdamParams::default()), Vec::new());
    let settings = Settings { checkpointing, dropout: None, scale: 1.0 / tokens as f64 };
    let mut started = Instant::now();
    for step in 0..=steps {
        if step == 1 {
            // The first one is not measured: it compiles and reserves.
            wait(compute)?;
            started = Instant::now();
        }
        let mut gradients = Gradients::new();
        let pass = gradient::pass(&student, &vec![vec![0]], &examples, settings, &mut gradients).map_err(failed)?;
        norm(&gradients).map_err(failed)?;
        adam.step(&student.weights, &gradients, 1e-4, 1.0).map_err(failed)?;
        losses.push(pass.loss / tokens as f64);
    }
    wait(compute)?;
    let seconds = started.elapsed().as_secs_f64() / steps.max(1) as f64;
    // Forwards, and backwards through what is not trained.
    let flops = tokens as f64 * (4.0 * (mapped + head) + 3.0 * heard);
    let losses = (losses[0], losses[losses.len() - 1]);
    Ok(Tuned { tokens_per_second: tokens as f64 / seconds, flops: flops / seconds, losses })
}
