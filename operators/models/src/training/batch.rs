//! What a pass takes and gives, whether by tensor operations or by loops.

use candle_core::{Device, Result, Tensor};

use super::example::Example;
use super::schedule::Pass;
use crate::decoder::{Dropout, Layout};

/// Logits that lie in memory at a time: on the CPU what its caches take, elsewhere enough to keep the device busy.
pub fn logits_at_once(device: &Device) -> usize {
    if device.is_cpu() { 1 << 22 } else { 1 << 28 }
}

/// What a forward pass came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Sum of the tokens' losses times their weights.
    pub loss: f64,
    /// Weights of the tokens that the model would have written itself.
    pub right: f64,
}

/// Tokens of a pass as the decoder takes them, and what is to be predicted.
pub struct Batch {
    /// Row by row.
    pub tokens: Vec<u32>,
    pub layout: Layout,
    /// Places (row × columns + column) from which a token is predicted, the token, and its weight.
    pub targets: Vec<(u32, u32, f32)>,
}

impl Batch {
    pub fn new(pass: &Pass, examples: &[Example]) -> Self {
        let length = |row: &Vec<usize>| row.iter().map(|example| examples[*example].tokens.len()).sum();
        let columns: usize = pass.iter().map(length).max().unwrap_or(0);
        let (mut tokens, mut segments, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (number, row) in pass.iter().enumerate() {
            for (segment, example) in row.iter().enumerate() {
                let example = &examples[*example];
                let first = tokens.len();
                let predicted = (1..example.tokens.len()).filter(|at| example.learnt[*at] || example.context > 0.0);
                targets
                    .extend(predicted.map(|at| ((first + at - 1) as u32, example.tokens[at], example.weight_at(at))));
                tokens.extend_from_slice(&example.tokens);
                segments.resize(tokens.len(), segment as u32 + 1);
            }
            tokens.resize((number + 1) * columns, 0);
            segments.resize((number + 1) * columns, 0);
        }
        let layout = Layout::packed(&segments, columns);
        Self { tokens, layout, targets }
    }

    /// Rows × columns.
    pub(super) fn tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&self.tokens, (self.layout.rows, self.layout.columns), device)
    }

    /// The tokens that are predicted, and their weights.
    pub fn wanted(&self) -> (Vec<u32>, Vec<f32>) {
        self.targets.iter().map(|target| (target.1, target.2)).unzip()
    }
}

/// What the passes of a step share.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Hold the activations of one layer at a time, and compute them again on the way back.
    pub checkpointing: bool,
    /// Decides what is dropped.
    pub dropout: Option<Dropout>,
    /// What the gradients are multiplied by.
    pub scale: f64,
}
