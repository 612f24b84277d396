//! The backend of hand-written loops: forward and backward passes in f32 on the CPU, by [`searchmill_kernels::training`].

mod sums;
mod weights;

use candle_core::Result;
use searchmill_kernels::attention::{Attention, Heads};
use searchmill_kernels::training::{self, Head, Layer, norm, norm_backward};

use self::sums::Sums;
use self::weights::{Locked, LockedLayer};
use super::batch::{Batch, PassOutcome, logits_at_once, temperatures};
use super::optimizer::Gradients;
use super::student::Student;
use crate::decoder::Angles;

/// A student's weights and a batch.
struct Network<'a> {
    student: &'a Student,
    batch: &'a Batch<'a>,
    layers: Vec<LockedLayer<'a>>,
    embedding: Locked<'a>,
    norm: Locked<'a>,
    head: Locked<'a>,
    angles: Angles,
}

impl<'a> Network<'a> {
    fn new(student: &'a Student, batch: &'a Batch<'a>) -> Self {
        let decoder = &student.decoder;
        Self {
            student,
            batch,
            layers: decoder.blocks.iter().map(|block| LockedLayer::of(block, decoder.config())).collect(),
            embedding: Locked::of(&decoder.embedding),
            norm: Locked::of(&decoder.norm),
            head: Locked::of(decoder.head_weight()),
            angles: decoder.angles(&batch.layout),
        }
    }

    fn width(&self) -> usize {
        self.student.decoder.config().hidden_size
    }

    fn eps(&self) -> f32 {
        self.student.decoder.config().rms_norm_eps as f32
    }

    fn layer(&self, number: usize) -> Result<Layer<'_>> {
        self.layers[number].layer(self.batch.tokens.len(), self.batch.layout.dropout)
    }

    fn place(&self) -> training::Place<'_> {
        let (config, layout) = (self.student.decoder.config(), &self.batch.layout);
        let shape = Heads {
            rows: layout.rows,
            columns: layout.columns,
            heads: config.num_attention_heads,
            size: config.head_dimensions(),
            keys: layout.columns,
            shared: config.key_value_heads(),
        };
        training::Place { attention: Attention { spans: &layout.spans, shape }, turns: self.angles.turns() }
    }

    fn embed(&self) -> Result<Vec<f32>> {
        let (width, table) = (self.width(), self.embedding.numbers()?);
        let mut out = Vec::with_capacity(self.batch.tokens.len() * width);
        for token in &self.batch.tokens {
            let Some(row) = table.get(*token as usize * width..(*token as usize + 1) * width) else {
                candle_core::bail!("token {token} is not in the vocabulary")
            };
            out.extend_from_slice(row);
        }
        Ok(out)
    }

    /// Returns the vectors from which tokens are predicted.
    fn wanted(&self, hidden: &[f32]) -> Vec<f32> {
        let width = self.width();
        let mut rows = Vec::with_capacity(self.batch.targets.len() * width);
        for target in &self.batch.targets {
            rows.extend_from_slice(&hidden[target.position as usize * width..][..width]);
        }
        rows
    }

    /// Runs `compute` on the output layer above the last layer's output.
    fn with_head<T>(&self, hidden: &[f32], compute: impl FnOnce(Head<'_>) -> T) -> Result<T> {
        let rows = self.wanted(&norm(hidden, self.norm.numbers()?, self.eps()));
        let tokens: Vec<u32> = self.batch.targets.iter().map(|target| target.token).collect();
        let (weight, width, at_once) = (self.head.numbers()?, self.width(), self.at_once());
        let (temperatures, entropies) = (temperatures(&self.batch.targets), self.batch.objective.needs_entropy());
        Ok(compute(Head {
            rows: &rows,
            weight,
            width,
            tokens: &tokens,
            temperatures: &temperatures,
            entropies,
            at_once,
        }))
    }

    /// Rows of logits computed at a time.
    fn at_once(&self) -> usize {
        let decoder = &self.student.decoder;
        (logits_at_once(&self.student.compute.device) / decoder.config().vocab_size).max(16)
    }
}

/// Computes the loss without gradients.
pub(super) fn evaluate(student: &Student, batch: &Batch<'_>) -> Result<PassOutcome> {
    // On a thread of the pool: a thread outside would be woken after each of many short loops.
    rayon::scope(|_| {
        let network = Network::new(student, batch);
        let mut hidden = network.embed()?;
        for number in 0..network.layers.len() {
            hidden = network.layer(number)?.forward(hidden, network.place()).0;
        }
        let mut outcome = PassOutcome::default();
        network.with_head(&hidden, |head| {
            head.forward(|found| drop(outcome.take(batch, found)));
        })?;
        Ok(outcome)
    })
}

/// Computes the loss and adds its gradients to `gradients`.
pub(super) fn pass(
    student: &Student,
    batch: &Batch<'_>,
    checkpointing: bool,
    gradients: &mut Gradients,
) -> Result<PassOutcome> {
    let network = Network::new(student, batch);
    let mut sums = Sums::new(student);
    // With checkpointing only the inputs of the layers are kept; their activations are recomputed.
    let (mut hidden, mut inputs, mut kept) = (network.embed()?, Vec::new(), Vec::new());
    for number in 0..network.layers.len() {
        let layer = network.layer(number)?;
        if checkpointing {
            inputs.push(hidden.clone());
            hidden = layer.forward(hidden, network.place()).0;
        } else {
            let (out, activations) = layer.forward(hidden, network.place());
            kept.push((layer, activations));
            hidden = out;
        }
    }
    let (outcome, mut gradient) = head(&network, &hidden, &mut sums)?;
    for number in (0..network.layers.len()).rev() {
        // Popped, so that the memory of a layer is free once its gradients are there.
        let (layer, activations) = if let Some(kept) = kept.pop() {
            kept
        } else {
            let layer = network.layer(number)?;
            let activations = layer.forward(inputs.pop().unwrap_or_default(), network.place()).1;
            (layer, activations)
        };
        gradient = layer.backward(&activations, network.place(), gradient, &mut sums.layers[number]);
    }
    sums.embed(&batch.tokens, &gradient, network.width());
    sums.add_to(student, gradients)?;
    Ok(outcome)
}

/// Returns the outcome, and the gradient of the last layer's output.
fn head(network: &Network<'_>, hidden: &[f32], sums: &mut Sums) -> Result<(PassOutcome, Vec<f32>)> {
    let (width, mut outcome) = (network.width(), PassOutcome::default());
    let of_rows = network.with_head(hidden, |head| {
        head.backward(sums.head_or_embedding(), |found| outcome.take(network.batch, found))
    })?;
    let mut gradient = vec![0.0; hidden.len()];
    for (target, row) in network.batch.targets.iter().zip(of_rows.chunks_exact(width)) {
        training::add(&mut gradient[target.position as usize * width..][..width], row);
    }
    let gradient = norm_backward(hidden, network.norm.numbers()?, network.eps(), &gradient, &mut sums.norm);
    Ok((outcome, gradient))
}
