//! Linear maps with an optional low-rank adapter.

use rayon::prelude::*;

use super::add;
use super::dropout::Mask;
use crate::matrix::{View, multiply};

/// Tokens per task.
const TOKENS: usize = 256;
/// Rows of a weight's gradient per task.
const OUTPUTS: usize = 64;

/// `x · weightᵀ + bias`, plus a low-rank adapter.
#[derive(Clone, Debug)]
pub struct Map<'a> {
    /// Outputs × inputs.
    pub weight: &'a [f32],
    /// One number per output.
    pub bias: Option<&'a [f32]>,
    pub inputs: usize,
    pub low_rank: Option<LowRank<'a>>,
}

/// A low-rank adapter (Hu et al. 2021, arXiv:2106.09685): `scale · dropout(x) · aᵀ · bᵀ`.
#[derive(Clone, Debug)]
pub struct LowRank<'a> {
    /// Rank × inputs.
    pub a: &'a [f32],
    /// Outputs × rank.
    pub b: &'a [f32],
    pub scale: f32,
    /// Dropout of the inputs, tokens × inputs.
    pub mask: Option<Mask>,
}

/// Sums of the gradients of a map's weights; empty ones are not computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapGradients {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
    pub a: Vec<f32>,
    pub b: Vec<f32>,
}

/// Computes `out = scale · left × right`, or adds it to `out` if `adds`.
pub(super) fn product(out: &mut [f32], left: &[f32], right: View<'_>, scale: f32, adds: bool) {
    let (inputs, outputs) = (right.rows, right.columns);
    // Chunks of no size are an error.
    if out.is_empty() || inputs == 0 {
        return;
    }
    out.par_chunks_mut(TOKENS * outputs).zip(left.par_chunks(TOKENS * inputs)).for_each(|(out, left)| {
        let left = View::new(left, left.len() / inputs, inputs);
        multiply(out, outputs, &left, &right, scale, adds);
    });
}

/// Computes `sum += scale · leftᵀ × right`: `left` is tokens × outputs, `right` tokens × inputs, `sum` outputs × inputs.
pub(super) fn accumulate(sum: &mut [f32], left: &[f32], right: &[f32], inputs: usize, scale: f32) {
    if sum.is_empty() || right.is_empty() {
        return;
    }
    let (outputs, tokens) = (sum.len() / inputs, right.len() / inputs);
    let right = View::new(right, tokens, inputs);
    sum.par_chunks_mut(OUTPUTS * inputs).enumerate().for_each(|(number, sum)| {
        let part = View::strided(&left[number * OUTPUTS..], tokens, sum.len() / inputs, outputs);
        multiply(sum, inputs, &part.transposed(), &right, scale, true);
    });
}

impl LowRank<'_> {
    fn rank(&self, inputs: usize) -> usize {
        self.a.len() / inputs
    }

    /// Returns the inputs after dropout.
    fn after_dropout<'x>(&self, rows: &'x [f32]) -> std::borrow::Cow<'x, [f32]> {
        match &self.mask {
            None => rows.into(),
            Some(mask) => mask.times(rows).into(),
        }
    }

    /// Returns tokens × rank.
    fn narrow(&self, rows: &[f32], inputs: usize) -> Vec<f32> {
        let rank = self.rank(inputs);
        let mut narrow = vec![0.0; rows.len() / inputs * rank];
        product(&mut narrow, rows, View::new(self.a, rank, inputs).transposed(), 1.0, false);
        narrow
    }
}

impl Map<'_> {
    pub fn outputs(&self) -> usize {
        self.weight.len() / self.inputs
    }

    /// Computes tokens × inputs to tokens × outputs.
    pub(super) fn forward(&self, rows: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; rows.len() / self.inputs * self.outputs()];
        self.forward_onto(rows, &mut out, false);
        out
    }

    /// Like [`Self::forward`], into `out`; adds to it if `adds`.
    pub(super) fn forward_onto(&self, rows: &[f32], out: &mut [f32], adds: bool) {
        let outputs = self.outputs();
        product(out, rows, View::new(self.weight, outputs, self.inputs).transposed(), 1.0, adds);
        if let Some(bias) = self.bias {
            out.par_chunks_mut(TOKENS * outputs).for_each(|out| {
                for row in out.chunks_exact_mut(outputs) {
                    add(row, bias);
                }
            });
        }
        if let Some(low) = &self.low_rank {
            let narrow = low.narrow(&low.after_dropout(rows), self.inputs);
            product(out, &narrow, View::new(low.b, outputs, low.rank(self.inputs)).transposed(), low.scale, true);
        }
    }

    /// Writes the gradient of `rows` to `of_rows` (adds it if `adds`), given that of the outputs. Adds those of the map's
    /// weights to `sums`.
    pub(super) fn backward(
        &self,
        rows: &[f32],
        gradient: &[f32],
        of_rows: &mut [f32],
        adds: bool,
        sums: &mut MapGradients,
    ) {
        let outputs = self.outputs();
        let MapGradients { weight, bias, a: of_a, b: of_b } = sums;
        // Independent of each other, so that small batches use all threads.
        rayon::join(
            || product(of_rows, gradient, View::new(self.weight, outputs, self.inputs), 1.0, adds),
            || accumulate(weight, gradient, rows, self.inputs, 1.0),
        );
        // On one thread, row by row: the order of the additions is fixed.
        if !bias.is_empty() {
            for row in gradient.chunks_exact(outputs) {
                add(bias, row);
            }
        }
        let Some(low) = &self.low_rank else { return };
        let rank = low.rank(self.inputs);
        // Computed again: kept from the forward pass, they would take memory in every layer.
        let dropped = low.after_dropout(rows);
        let narrow = low.narrow(&dropped, self.inputs);
        accumulate(of_b, gradient, &narrow, rank, low.scale);
        let mut of_narrow = vec![0.0; narrow.len()];
        product(&mut of_narrow, gradient, View::new(low.b, outputs, rank), low.scale, false);
        accumulate(of_a, &of_narrow, &dropped, self.inputs, 1.0);
        let back = View::new(low.a, rank, self.inputs);
        let Some(mask) = &low.mask else { return product(of_rows, &of_narrow, back, 1.0, true) };
        let mut of_dropped = vec![0.0; rows.len()];
        product(&mut of_dropped, &of_narrow, back, 1.0, false);
        mask.add_times(of_rows, of_dropped);
    }
}
