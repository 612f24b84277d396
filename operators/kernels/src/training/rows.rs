//! Operations on single rows, on all threads.

use rayon::prelude::*;

use super::add;
use crate::loops::{self, Turns};

/// Rows per task. Fixed, so that sums over rows do not depend on the number of threads.
const ROWS: usize = 32;
/// Numbers per task.
const NUMBERS: usize = 1 << 13;

/// Computes the root-mean-square norm of each row (as long as `weight`).
pub fn norm(rows: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let (mut out, block) = (vec![0.0; rows.len()], ROWS * weight.len());
    let blocks = out.par_chunks_mut(block).zip(rows.par_chunks(block));
    blocks.for_each(|(out, rows)| loops::rms_norm(rows, weight, eps, out));
    out
}

/// Returns the gradient of [`norm`]'s rows. Adds that of its weight to `of_weight`, unless it is empty.
pub fn norm_backward(rows: &[f32], weight: &[f32], eps: f32, gradient: &[f32], of_weight: &mut [f32]) -> Vec<f32> {
    let (width, block) = (weight.len(), ROWS * weight.len());
    let mut of_rows = vec![0.0; rows.len()];
    // A sum of its own for each block, added in their order: the threads do not change the result.
    let mut partial = vec![0.0; rows.len().div_ceil(block) * width];
    let inputs = rows.par_chunks(block).zip(gradient.par_chunks(block));
    let outputs = of_rows.par_chunks_mut(block).zip(partial.par_chunks_mut(width));
    inputs.zip(outputs).for_each(|((rows, gradient), (out, sums))| {
        loops::rms_norm_backward(rows, weight, eps, gradient, out, sums);
    });
    for sums in partial.chunks(width) {
        add(of_weight, sums);
    }
    of_rows
}

/// Computes SiLU of `gate` times `up`.
pub(super) fn silu_product(gate: &[f32], up: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; gate.len()];
    let inputs = gate.par_chunks(NUMBERS).zip(up.par_chunks(NUMBERS));
    out.par_chunks_mut(NUMBERS).zip(inputs).for_each(|(out, (gate, up))| loops::silu_product(gate, up, out));
    out
}

/// Returns the gradients of `gate` and `up`.
pub(super) fn silu_product_backward(gate: &[f32], up: &[f32], gradient: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut of_gate, mut of_up) = (vec![0.0; gate.len()], vec![0.0; up.len()]);
    let inputs = gate.par_chunks(NUMBERS).zip(up.par_chunks(NUMBERS)).zip(gradient.par_chunks(NUMBERS));
    let outputs = of_gate.par_chunks_mut(NUMBERS).zip(of_up.par_chunks_mut(NUMBERS));
    inputs.zip(outputs).for_each(|(((gate, up), gradient), (of_gate, of_up))| {
        loops::silu_product_backward(gate, up, gradient, of_gate, of_up);
    });
    (of_gate, of_up)
}

/// Rotates the heads of each token (`width` numbers) by its angles, or back.
pub(super) fn rotate(tokens: &[f32], width: usize, turns: Turns<'_>, back: bool) -> Vec<f32> {
    let (mut out, block) = (vec![0.0; tokens.len()], ROWS * width);
    out.par_chunks_mut(block).zip(tokens.par_chunks(block)).enumerate().for_each(|(number, (out, tokens))| {
        loops::rotate(tokens, width, number * ROWS, turns, back, out);
    });
    out
}
