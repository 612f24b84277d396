//! Input and outcome of a pass, the same for both backends.

use std::collections::BTreeMap;

use candle_core::{Device, Result, Tensor};
use searchmill_kernels::training::{Predictions, Slopes};

use super::example::Example;
use super::objective::Objective;
use super::packing::Pass;
use crate::decoder::Layout;

/// Logits held in memory at a time: on the CPU as many as fit its caches, elsewhere enough to keep the device busy.
pub fn logits_at_once(device: &Device) -> usize {
    if device.is_cpu() { 1 << 22 } else { 1 << 28 }
}

/// A token to be predicted.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Where the token is predicted from: row × columns + column.
    pub position: u32,
    pub token: u32,
    pub weight: f32,
    /// Divisor of the logits.
    pub temperature: f32,
    /// Number of the example.
    example: usize,
    /// Position in the example.
    at: usize,
}

/// Packed examples of a pass, and the tokens to be predicted.
pub struct Batch<'a> {
    /// Row by row.
    pub tokens: Vec<u32>,
    pub layout: Layout,
    pub targets: Vec<Target>,
    /// Factor of the gradients.
    pub scale: f64,
    examples: &'a [Example],
    pub(super) objective: &'a dyn Objective,
}

impl<'a> Batch<'a> {
    pub fn new(pass: &Pass, examples: &'a [Example], objective: &'a dyn Objective) -> Self {
        let mut columns = 0;
        for row in pass {
            columns = columns.max(row.iter().map(|example| examples[*example].tokens.len()).sum());
        }
        let (mut tokens, mut segments, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (row, numbers) in pass.iter().enumerate() {
            for (segment, number) in numbers.iter().enumerate() {
                let (example, first) = (&examples[*number], tokens.len());
                for at in 1..example.tokens.len() {
                    let Some(weight) = objective.weight(example, at) else { continue };
                    // A token is predicted from the one before it.
                    let position = (first + at - 1) as u32;
                    let (token, temperature) = (example.tokens[at], example.temperature());
                    targets.push(Target { position, token, weight, temperature, example: *number, at });
                }
                tokens.extend_from_slice(&example.tokens);
                segments.resize(tokens.len(), segment as u32 + 1);
            }
            // Segment 0 is filling: nothing sees it, and it has no target.
            tokens.resize((row + 1) * columns, 0);
            segments.resize((row + 1) * columns, 0);
        }
        let layout = Layout::packed(&segments, columns);
        Self { tokens, layout, targets, scale: 1.0, examples, objective }
    }

    /// Rows × columns.
    pub(super) fn tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&self.tokens, (self.layout.rows, self.layout.columns), device)
    }
}

/// Sums over the targets of a pass, and their log-probabilities.
#[derive(Clone, Debug, Default)]
pub struct PassOutcome {
    /// Sum of weighted losses.
    pub loss: f64,
    /// Sum of the weights of the targets that had the highest logit.
    pub right: f64,
    /// Sum of the entropies, if they are measured.
    pub entropy: f64,
    /// One per target, in the order of [`Batch::targets`].
    pub log_probabilities: Vec<f32>,
}

impl PassOutcome {
    /// Adds the predictions of the next targets. Returns their gradients, scaled.
    pub(super) fn take(&mut self, batch: &Batch<'_>, predictions: Predictions<'_>) -> Slopes {
        let Predictions { log_probabilities, best, entropies } = predictions;
        // The predictions come in the order of the targets, some at a time.
        let targets = &batch.targets[self.log_probabilities.len()..];
        self.log_probabilities.extend_from_slice(log_probabilities);
        self.entropy += entropies.iter().map(|entropy| f64::from(*entropy)).sum::<f64>();
        let mut slopes = Slopes { log_probabilities: Vec::with_capacity(best.len()), entropies: Vec::new() };
        for (target, (log_probability, best)) in targets.iter().zip(log_probabilities.iter().zip(best)) {
            let loss = batch.objective.loss(&batch.examples[target.example], target.at, *log_probability);
            self.loss += f64::from(loss.value * target.weight);
            self.right += if *best == target.token { f64::from(target.weight) } else { 0.0 };
            slopes.log_probabilities.push(loss.slope * target.weight * batch.scale as f32);
        }
        if let Some(factor) = batch.objective.entropy_bonus() {
            for (target, entropy) in targets.iter().zip(entropies) {
                let weight = factor * target.weight;
                self.loss -= f64::from(weight * entropy);
                slopes.entropies.push(-weight * batch.scale as f32);
            }
        }
        slopes
    }

    /// Splits the log-probabilities by example.
    pub(super) fn by_example(&self, batch: &Batch<'_>) -> BTreeMap<usize, Vec<f32>> {
        let mut all = BTreeMap::<usize, Vec<f32>>::new();
        for (target, log_probability) in batch.targets.iter().zip(&self.log_probabilities) {
            all.entry(target.example).or_default().push(*log_probability);
        }
        all
    }
}

/// Returns the temperatures of targets; nothing if all are 1.
pub(super) fn temperatures(targets: &[Target]) -> Vec<f32> {
    if targets.iter().all(|target| (target.temperature - 1.0).abs() < f32::EPSILON) {
        return Vec::new();
    }
    targets.iter().map(|target| target.temperature).collect()
}
