//! The loss of tokens that are to be predicted: the weighted negative log-probability of each.

use rayon::prelude::*;

use super::linear::{accumulate, product};
use crate::loops;
use crate::matrix::View;

/// Rows of logits that one thread takes at once.
const ROWS: usize = 32;

/// What is to be predicted, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Predicted<'a> {
    pub tokens: &'a [u32],
    pub weights: &'a [f32],
}

/// What the predictions came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// Sum of the tokens' losses times their weights.
    pub loss: f64,
    /// Weights of the tokens that had the highest logit.
    pub right: f64,
}

/// The loss of vectors (rows × dimensions) under the weight that makes logits (vocabulary × dimensions), `at_once` rows
/// at a time.
pub fn judge(rows: &[f32], head: &[f32], width: usize, predicted: Predicted<'_>, at_once: usize) -> Judged {
    let mut judged = Judged::default();
    each(rows, width, predicted, at_once, |rows, part| {
        let logits = logits_of(rows, head, width);
        judged.take(&logits, part);
    });
    judged
}

/// The same with gradients: gives that of the vectors, times `scale`, and adds that of the weight to `of_head`, unless
/// that is empty.
pub fn learn(
    rows: &[f32],
    head: &[f32],
    width: usize,
    predicted: Predicted<'_>,
    (at_once, scale): (usize, f32),
    of_head: &mut [f32],
) -> (Judged, Vec<f32>) {
    let (mut judged, mut of_rows) = (Judged::default(), Vec::with_capacity(rows.len()));
    let vocabulary = head.len() / width;
    each(rows, width, predicted, at_once, |rows, part| {
        let logits = logits_of(rows, head, width);
        judged.take(&logits, part);
        let factors: Vec<f32> = part.weights.iter().map(|weight| -weight * scale).collect();
        let mut gradient = vec![0.0; logits.len()];
        let given = logits.par_chunks(ROWS * vocabulary).zip(part.tokens.par_chunks(ROWS));
        let blocks = gradient.par_chunks_mut(ROWS * vocabulary).zip(given).zip(factors.par_chunks(ROWS));
        blocks.for_each(|((out, (logits, tokens)), factors)| {
            loops::log_probabilities_backward(logits, tokens, factors, out);
        });
        let first = of_rows.len();
        of_rows.resize(first + rows.len(), 0.0);
        rayon::join(
            || product(&mut of_rows[first..], &gradient, View::new(head, vocabulary, width), 1.0, false),
            || accumulate(of_head, &gradient, rows, width, 1.0),
        );
    });
    (judged, of_rows)
}

fn each(
    rows: &[f32],
    width: usize,
    predicted: Predicted<'_>,
    at_once: usize,
    mut take: impl FnMut(&[f32], Predicted<'_>),
) {
    let parts =
        rows.chunks(at_once * width).zip(predicted.tokens.chunks(at_once)).zip(predicted.weights.chunks(at_once));
    for ((rows, tokens), weights) in parts {
        take(rows, Predicted { tokens, weights });
    }
}

fn logits_of(rows: &[f32], head: &[f32], width: usize) -> Vec<f32> {
    let vocabulary = head.len() / width;
    let mut logits = vec![0.0; rows.len() / width * vocabulary];
    product(&mut logits, rows, View::new(head, vocabulary, width).transposed(), 1.0, false);
    logits
}

impl Judged {
    fn take(&mut self, logits: &[f32], part: Predicted<'_>) {
        let vocabulary = logits.len() / part.tokens.len().max(1);
        let mut logs = vec![0.0; part.tokens.len()];
        let mut best = vec![0_u32; part.tokens.len()];
        let given = logits.par_chunks(ROWS * vocabulary).zip(part.tokens.par_chunks(ROWS));
        let wanted = logs.par_chunks_mut(ROWS).zip(best.par_chunks_mut(ROWS));
        wanted.zip(given).for_each(|((logs, best), (logits, tokens))| {
            loops::log_probabilities(logits, tokens, logs);
            loops::highest(logits, best);
        });
        let rows = logs.iter().zip(best).zip(part.tokens.iter().zip(part.weights));
        for ((log, best), (token, weight)) in rows {
            self.loss -= f64::from(log * weight);
            self.right += if best == *token { f64::from(*weight) } else { 0.0 };
        }
    }
}
