//! The output layer: log-probabilities of the predicted tokens, and the way back from their gradients.

use rayon::prelude::*;

use super::linear::{accumulate, product};
use crate::loops;
use crate::matrix::View;

/// Rows of logits per task. Fixed, so that results do not depend on the number of threads.
const ROWS: usize = 32;

/// Vectors from which tokens are predicted, and the weight that turns them into logits.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Tokens × width.
    pub rows: &'a [f32],
    /// Vocabulary × width.
    pub weight: &'a [f32],
    pub width: usize,
    /// The predicted tokens, one per row.
    pub tokens: &'a [u32],
    /// Divisors of the logits, one per row; empty: all are 1.
    pub temperatures: &'a [f32],
    /// Whether entropies are computed.
    pub entropies: bool,
    /// Rows of logits held in memory at a time.
    pub at_once: usize,
}

/// Predictions of consecutive rows.
#[derive(Clone, Copy, Debug)]
pub struct Predictions<'a> {
    /// Natural logarithms of the tokens' probabilities.
    pub log_probabilities: &'a [f32],
    /// Tokens with the highest logit.
    pub best: &'a [u32],
    /// Entropies of the distributions in nats; empty if they are not computed.
    pub entropies: &'a [f32],
}

/// Gradients of the predictions of consecutive rows.
#[derive(Clone, Debug, Default)]
pub struct Slopes {
    /// Of the log-probabilities.
    pub log_probabilities: Vec<f32>,
    /// Of the entropies; empty if nothing depends on them.
    pub entropies: Vec<f32>,
}

/// Consecutive rows.
#[derive(Clone, Copy)]
struct Part<'a> {
    rows: &'a [f32],
    tokens: &'a [u32],
    temperatures: &'a [f32],
}

impl Head<'_> {
    /// Passes the predictions of all rows to `take`, in order, some rows at a time.
    pub fn forward(&self, mut take: impl FnMut(Predictions<'_>)) {
        for part in self.parts() {
            self.predict(&self.logits(part), part.tokens, &mut take);
        }
    }

    /// Like [`Self::forward`]; `slopes` returns the gradients of each row's predictions. Returns the gradient of the rows
    /// and adds that of the weight to `of_weight`, unless it is empty.
    pub fn backward(&self, of_weight: &mut [f32], mut slopes: impl FnMut(Predictions<'_>) -> Slopes) -> Vec<f32> {
        let (mut of_rows, vocabulary) = (Vec::with_capacity(self.rows.len()), self.vocabulary());
        for part in self.parts() {
            let (rows, tokens) = (part.rows, part.tokens);
            let logits = self.logits(part);
            let Slopes { log_probabilities: mut slopes, mut entropies } = self.predict(&logits, tokens, &mut slopes);
            // The gradient is linear in the slope, and that of a quotient is divided too.
            for slopes in [&mut slopes, &mut entropies] {
                for (slope, temperature) in slopes.iter_mut().zip(part.temperatures) {
                    *slope /= temperature;
                }
            }
            let mut gradient = vec![0.0; logits.len()];
            let inputs = logits.par_chunks(ROWS * vocabulary).zip(tokens.par_chunks(ROWS));
            let blocks = gradient.par_chunks_mut(ROWS * vocabulary).zip(inputs).zip(slopes.par_chunks(ROWS));
            blocks.for_each(|((out, (logits, tokens)), slopes)| {
                loops::log_probabilities_backward(logits, tokens, slopes, out);
            });
            let blocks = gradient.par_chunks_mut(ROWS * vocabulary).zip(logits.par_chunks(ROWS * vocabulary));
            blocks.zip(entropies.par_chunks(ROWS)).for_each(|((out, logits), slopes)| {
                loops::add_entropies_backward(logits, slopes, out);
            });
            // Each row is in one part, so the parts of the gradient are concatenated.
            let first = of_rows.len();
            of_rows.resize(first + rows.len(), 0.0);
            let weight = View::new(self.weight, vocabulary, self.width);
            rayon::join(
                || product(&mut of_rows[first..], &gradient, weight, 1.0, false),
                || accumulate(of_weight, &gradient, rows, self.width, 1.0),
            );
        }
        of_rows
    }

    fn vocabulary(&self) -> usize {
        self.weight.len() / self.width
    }

    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let parts = self.rows.chunks(self.at_once * self.width).zip(self.tokens.chunks(self.at_once));
        parts.enumerate().map(|(number, (rows, tokens))| {
            // There are as many temperatures as rows, or none.
            let first = (number * self.at_once).min(self.temperatures.len());
            let temperatures = &self.temperatures[first..(first + tokens.len()).min(self.temperatures.len())];
            Part { rows, tokens, temperatures }
        })
    }

    /// Returns the logits, divided by their temperatures.
    fn logits(&self, part: Part<'_>) -> Vec<f32> {
        let vocabulary = self.vocabulary();
        let mut logits = vec![0.0; part.rows.len() / self.width * vocabulary];
        product(&mut logits, part.rows, View::new(self.weight, vocabulary, self.width).transposed(), 1.0, false);
        if !part.temperatures.is_empty() {
            let rows = logits.par_chunks_mut(ROWS * vocabulary).zip(part.temperatures.par_chunks(ROWS));
            rows.for_each(|(logits, temperatures)| loops::divide_rows(logits, temperatures));
        }
        logits
    }

    fn predict<T>(&self, logits: &[f32], tokens: &[u32], take: &mut impl FnMut(Predictions<'_>) -> T) -> T {
        let mut log_probabilities = vec![0.0; tokens.len()];
        let mut best = vec![0_u32; tokens.len()];
        let inputs = logits.par_chunks(ROWS * self.vocabulary()).zip(tokens.par_chunks(ROWS));
        let wanted = log_probabilities.par_chunks_mut(ROWS).zip(best.par_chunks_mut(ROWS));
        wanted.zip(inputs).for_each(|((log_probabilities, best), (logits, tokens))| {
            loops::log_probabilities(logits, tokens, log_probabilities);
            loops::highest(logits, best);
        });
        let mut entropies = Vec::new();
        if self.entropies {
            entropies.resize(tokens.len(), 0.0);
            let inputs = logits.par_chunks(ROWS * self.vocabulary()).zip(tokens.par_chunks(ROWS));
            let inputs = inputs.zip(log_probabilities.par_chunks(ROWS));
            entropies.par_chunks_mut(ROWS).zip(inputs).for_each(|(out, ((logits, tokens), log_probabilities))| {
                loops::entropies(logits, tokens, log_probabilities, out);
            });
        }
        take(Predictions { log_probabilities: &log_probabilities, best: &best, entropies: &entropies })
    }
}
