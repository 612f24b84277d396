//! Throughput of generation with random weights.

use std::time::Instant;

use searchmill_engine::operator::OperatorError;

use super::generator::Generator;
use super::network::{Piece, Scratch};
use super::slot::Slot;
use crate::decoder::failed;
use crate::device::Compute;
use crate::throughput::{Drawn, wait};

/// Measured throughput of generation.
#[derive(Clone, Copy, Debug)]
pub struct Generation {
    /// Prompt tokens per second over all rows.
    pub prefill_tokens_per_second: f64,
    /// Floating-point operations per second of the prefill.
    pub prefill_flops: f64,
    /// Generated tokens per second over all rows.
    pub decode_tokens_per_second: f64,
    /// Bytes of weights, keys and values read per second of decoding.
    pub decode_bytes_per_second: f64,
}

/// Prompt tokens per step.
const STEP: usize = 4096;

/// Measures the prefill of `batch` prompts with `prompt` tokens each, then the decoding of `new` tokens per row. `config` is
/// the text of a `config.json`.
///
/// # Errors
/// When `config` is invalid, or the device fails.
pub fn generation(
    config: &str,
    compute: &Compute,
    batch: usize,
    prompt: usize,
    new: usize,
) -> Result<Generation, OperatorError> {
    let drawn = Drawn::new(config, compute)?;
    let context = prompt + new + 1;
    let generator = Generator::new(&drawn.decoder, compute, batch, context).map_err(failed)?;
    let mut run = Run { generator, scratch: Scratch::default(), logits: Vec::new() };
    // Warm up: the first use compiles kernels and reserves memory.
    let mut slots = run.slots(batch)?;
    run.read(&mut slots, prompt.min(STEP), 1)?;
    run.read(&mut slots, 1, 1)?;
    drop(slots);
    wait(compute)?;
    let mut slots = run.slots(batch)?;
    let started = Instant::now();
    let rows = (STEP / prompt).max(1);
    for slots in slots.chunks_mut(rows) {
        run.read(slots, prompt, 1)?;
    }
    wait(compute)?;
    let prefill = started.elapsed().as_secs_f64();
    let started = Instant::now();
    run.read(&mut slots, 1, new)?;
    wait(compute)?;
    let decode = started.elapsed().as_secs_f64();
    let (batch, prompt, new) = (batch as f64, prompt as f64, new as f64);
    let flops = batch * (prompt * (2.0 * drawn.mapped() + drawn.attention(prompt / 2.0)) + 2.0 * drawn.head());
    let number = compute.dtype.size_in_bytes();
    // Each new token reads the weights, and the cache of all tokens before it: on average half of the new ones.
    let cached = drawn.config.cache_bytes_per_token(number) as f64 * batch * (prompt + new / 2.0);
    let read = (drawn.mapped() + drawn.head()) * number as f64 + cached;
    Ok(Generation {
        prefill_tokens_per_second: batch * prompt / prefill,
        prefill_flops: flops / prefill,
        decode_tokens_per_second: batch * new / decode,
        decode_bytes_per_second: read * new / decode,
    })
}

struct Run {
    generator: Generator,
    scratch: Scratch,
    logits: Vec<f32>,
}

impl Run {
    fn slots(&self, count: usize) -> Result<Vec<Slot>, OperatorError> {
        (0..count).map(|_| self.generator.empty().map_err(failed)).collect()
    }

    /// Reads `count` tokens per row, `times` times. Fetches the logits of the last token, as a sampler would.
    fn read(&mut self, slots: &mut [Slot], count: usize, times: usize) -> Result<(), OperatorError> {
        let vocabulary = self.generator.shape().vocabulary;
        let tokens: Vec<u32> = (0..count).map(|at| (at * 7919 % vocabulary) as u32).collect();
        for _ in 0..times {
            let mut pieces: Vec<Piece<'_>> =
                slots.iter_mut().map(|slot| Piece { slot, tokens: &tokens, wanted: 1 }).collect();
            self.generator.read(&mut pieces, &mut self.scratch, &mut self.logits).map_err(failed)?;
        }
        Ok(())
    }
}
