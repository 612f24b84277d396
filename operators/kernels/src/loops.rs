//! A decoder's loops over rows of numbers, forward and backward, compiled for the processor's vector unit.
#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the vector unit of the loop it is in")]

use pulp::Arch;

use crate::vectorized::{exp, fold, softmax, sum_of_squares};

/// Root-mean-square norm of each row (Zhang and Sennrich 2019, arXiv:1910.07467).
pub fn rms_norm(rows: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    Arch::new().dispatch(|| {
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let factor = inverse_root(row, eps);
            for ((out, number), weight) in out.iter_mut().zip(row).zip(weight) {
                *out = number * factor * weight;
            }
        }
    });
}

#[inline(always)]
fn inverse_root(row: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(row) / row.len() as f32 + eps).sqrt()
}

/// Computes the gradients of [`rms_norm`]: writes those of the rows, adds that of the weight.
pub fn rms_norm_backward(
    rows: &[f32],
    weight: &[f32],
    eps: f32,
    gradients: &[f32],
    row_gradients: &mut [f32],
    weight_gradient: &mut [f32],
) {
    let width = weight.len();
    Arch::new().dispatch(|| {
        let rows = rows.chunks_exact(width).zip(gradients.chunks_exact(width));
        for ((row, gradient), out) in rows.zip(row_gradients.chunks_exact_mut(width)) {
            let factor = inverse_root(row, eps);
            // One pass for the weight's sums and the products that the rows' gradients share.
            let mut products = 0.0;
            for (((sum, gradient), number), weight) in weight_gradient.iter_mut().zip(gradient).zip(row).zip(weight) {
                *sum += gradient * number * factor;
                products += gradient * weight * number;
            }
            let shared = products * factor * factor * factor / width as f32;
            for (((out, gradient), number), weight) in out.iter_mut().zip(gradient).zip(row).zip(weight) {
                *out = gradient * weight * factor - number * shared;
            }
        }
    });
}

/// x / (1 + e⁻ˣ).
#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Computes SiLU of the gate times the other branch (Shazeer 2020, arXiv:2002.05202).
pub fn silu_product(gate: &[f32], up: &[f32], out: &mut [f32]) {
    Arch::new().dispatch(|| {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = silu(*gate) * up;
        }
    });
}

/// Computes the gradients of [`silu_product`].
pub fn silu_product_backward(
    gate: &[f32],
    up: &[f32],
    gradient: &[f32],
    gate_gradient: &mut [f32],
    up_gradient: &mut [f32],
) {
    Arch::new().dispatch(|| {
        let inputs = gate.iter().zip(up).zip(gradient);
        let outputs = gate_gradient.iter_mut().zip(up_gradient);
        for (((gate, up), gradient), (gate_gradient, up_gradient)) in inputs.zip(outputs) {
            let share = 1.0 / (1.0 + exp(-gate));
            let silu = gate * share;
            *up_gradient = gradient * silu;
            *gate_gradient = gradient * up * (share + silu * (1.0 - share));
        }
    });
}

/// Cosines and sines of the angles of some tokens, `half` numbers each.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// Tokens × half.
    pub cosines: &'a [f32],
    /// Tokens × half.
    pub sines: &'a [f32],
    /// Half of a head's size.
    pub half: usize,
}

/// Rotates the two halves of every head by the angles of its token (`back`: by the negative angles). `tokens` holds the heads
/// of tokens `first`, `first + 1`, … of the angles, `width` numbers each.
pub fn rotate(tokens: &[f32], width: usize, first: usize, angles: Turns<'_>, back: bool, out: &mut [f32]) {
    let half = angles.half;
    let sign = if back { -1.0 } else { 1.0 };
    Arch::new().dispatch(|| {
        for (number, (token, out)) in tokens.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
            let cosines = &angles.cosines[(first + number) * half..][..half];
            let sines = &angles.sines[(first + number) * half..][..half];
            for (head, out) in token.chunks_exact(2 * half).zip(out.chunks_exact_mut(2 * half)) {
                let (left, right) = head.split_at(half);
                let (out_left, out_right) = out.split_at_mut(half);
                let inputs = left.iter().zip(right).zip(cosines.iter().zip(sines));
                for (((left, right), (cosine, sine)), (out_left, out_right)) in
                    inputs.zip(out_left.iter_mut().zip(out_right))
                {
                    let sine = sine * sign;
                    *out_left = left * cosine - right * sine;
                    *out_right = right * cosine + left * sine;
                }
            }
        }
    });
}

/// The keys that a token sees: `start..end` of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

/// Replaces each row of `width` scores by its softmax over the keys that its token sees; other numbers become 0. The scores
/// belong to keys `first`, `first + 1`, ….
pub fn masked_softmax(scores: &mut [f32], width: usize, spans: &[Span], first: u32) {
    Arch::new().dispatch(|| {
        for (row, span) in scores.chunks_exact_mut(width).zip(spans) {
            let (start, end) = ((span.start - first) as usize, (span.end - first) as usize);
            // Zeros, not the scores: the product with the values runs over all keys of the block.
            row[..start].fill(0.0);
            row[end..].fill(0.0);
            softmax(&mut row[start..end]);
        }
    });
}

/// Replaces the gradient of a softmax's result by the gradient of its scores, times `scale`.
pub fn softmax_backward(shares: &[f32], gradients: &mut [f32], width: usize, scale: f32) {
    Arch::new().dispatch(|| {
        for (shares, gradients) in shares.chunks_exact(width).zip(gradients.chunks_exact_mut(width)) {
            // One sum in the order of the keys.
            let mut whole = 0.0;
            for (share, gradient) in shares.iter().zip(gradients.iter()) {
                whole += share * gradient;
            }
            for (gradient, share) in gradients.iter_mut().zip(shares) {
                *gradient = share * (*gradient - whole) * scale;
            }
        }
    });
}

/// Returns ln Σ exp(number).
#[inline(always)]
fn log_sum_exp(row: &[f32]) -> f32 {
    // Less the highest one, so that no power overflows.
    let highest = fold(row, f32::NEG_INFINITY, f32::max, f32::max);
    let whole = fold(row, 0.0, |sum, number| sum + exp(number - highest), |a, b| a + b);
    highest + whole.ln()
}

/// Finds the index of the highest number of each row of logits (the first of equals).
pub fn highest(logits: &[f32], out: &mut [u32]) {
    let width = logits.len() / out.len().max(1);
    Arch::new().dispatch(|| {
        for (row, out) in logits.chunks_exact(width.max(1)).zip(out) {
            let highest = fold(row, f32::NEG_INFINITY, f32::max, f32::max);
            *out = row.iter().position(|number| *number == highest).unwrap_or(0) as u32;
        }
    });
}

/// Computes the log-probability of the target of each row of logits.
pub fn log_probabilities(logits: &[f32], targets: &[u32], out: &mut [f32]) {
    let width = logits.len() / targets.len().max(1);
    Arch::new().dispatch(|| {
        for ((row, target), out) in logits.chunks_exact(width).zip(targets).zip(out) {
            *out = row[*target as usize] - log_sum_exp(row);
        }
    });
}

/// Computes the entropy of the distribution of each row of logits, in nats, from the log-probability of its target.
pub fn entropies(logits: &[f32], targets: &[u32], log_probabilities: &[f32], out: &mut [f32]) {
    let width = logits.len() / targets.len().max(1);
    Arch::new().dispatch(|| {
        let rows = logits.chunks_exact(width).zip(targets).zip(log_probabilities);
        for (((row, target), log_probability), out) in rows.zip(out) {
            let whole = row[*target as usize] - log_probability;
            *out = fold(row, 0.0, |sum, number| sum - exp(number - whole) * (number - whole), |a, b| a + b);
        }
    });
}

/// Divides each row of logits by its temperature.
pub fn divide_rows(logits: &mut [f32], temperatures: &[f32]) {
    let width = logits.len() / temperatures.len().max(1);
    Arch::new().dispatch(|| {
        for (row, temperature) in logits.chunks_exact_mut(width.max(1)).zip(temperatures) {
            for number in row.iter_mut() {
                *number /= temperature;
            }
        }
    });
}

/// Computes the gradients of [`log_probabilities`].
pub fn log_probabilities_backward(logits: &[f32], targets: &[u32], gradients: &[f32], out: &mut [f32]) {
    let width = logits.len() / targets.len().max(1);
    Arch::new().dispatch(|| {
        let rows = logits.chunks_exact(width).zip(targets).zip(gradients);
        for (((row, target), gradient), out) in rows.zip(out.chunks_exact_mut(width)) {
            // Clipped tokens have no gradient, and their row of logits is long.
            if *gradient == 0.0 {
                out.fill(0.0);
                continue;
            }
            let whole = log_sum_exp(row);
            for (out, number) in out.iter_mut().zip(row) {
                *out = -exp(number - whole) * gradient;
            }
            out[*target as usize] += gradient;
        }
    });
}

/// Adds the gradients of [`entropies`]: that of a logit with probability p is −p · (ln p + entropy).
pub fn add_entropies_backward(logits: &[f32], gradients: &[f32], out: &mut [f32]) {
    let width = logits.len() / gradients.len().max(1);
    Arch::new().dispatch(|| {
        let rows = logits.chunks_exact(width.max(1)).zip(gradients);
        for ((row, gradient), out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            if *gradient == 0.0 {
                continue;
            }
            let whole = log_sum_exp(row);
            let negative = fold(row, 0.0, |sum, number| sum + exp(number - whole) * (number - whole), |a, b| a + b);
            for (out, number) in out.iter_mut().zip(row) {
                let log_probability = number - whole;
                *out -= exp(log_probability) * (log_probability - negative) * gradient;
            }
        }
    });
}

/// Computes the attention of some queries from their scores, one per query and value. The scores are scaled by 1/√size
/// and replaced by their softmax; the values are summed in order.
pub fn attend_one(scores: &mut [f32], values: &[f32], size: usize, out: &mut [f32]) {
    let count = values.len() / size;
    let scale = 1.0 / (size as f32).sqrt();
    Arch::new().dispatch(|| {
        for (scores, out) in scores.chunks_exact_mut(count).zip(out.chunks_exact_mut(size)) {
            for score in scores.iter_mut() {
                *score *= scale;
            }
            softmax(scores);
            for (share, value) in scores.iter().zip(values.chunks_exact(size)) {
                for (out, number) in out.iter_mut().zip(value) {
                    *out += share * number;
                }
            }
        }
    });
}

/// Computes exp((number − `highest`) · `scale`) for each number.
pub fn powers(numbers: &[f32], highest: f32, scale: f32, out: &mut [f32]) {
    Arch::new().dispatch(|| {
        for (out, number) in out.iter_mut().zip(numbers) {
            *out = exp((number - highest) * scale);
        }
    });
}

/// Returns ln Σ exp(number).
pub fn log_of_sum(numbers: &[f32]) -> f32 {
    Arch::new().dispatch(|| log_sum_exp(numbers))
}
