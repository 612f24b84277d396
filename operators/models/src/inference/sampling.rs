//! Sampling: from logits to the next token.

use std::cmp::Ordering;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use searchmill_kernels::loops::{highest, log_of_sum, powers};

/// Sampling settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits (0: always the most probable token).
    pub temperature: f32,
    /// Samples from the `top_k` most probable tokens (0: all).
    pub top_k: usize,
    /// Samples from the most probable tokens with this total probability (1: all; Holtzman et al. 2019, arXiv:1904.09751).
    pub top_p: f32,
}

impl Sampling {
    /// Always the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0 };

    /// Whether all tokens are candidates.
    fn takes_all(self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0
    }
}

/// Distribution of a log-probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// The model's own, before sampling settings apply (vLLM's `raw_logprobs`).
    Model,
    /// The one that was sampled from: after temperature, `top_k` and `top_p` (vLLM's `processed_logprobs`). At temperature 0,
    /// the model's own.
    Sampled,
}

impl Distribution {
    /// Returns the natural logarithm of the probability of a token that was sampled with these settings.
    pub(super) fn log_probability(self, logits: &[f32], token: u32, sampling: Sampling) -> f32 {
        let (temperature, everywhere) = (sampling.temperature, sampling.takes_all());
        if self == Self::Model || temperature <= 0.0 || (everywhere && (temperature - 1.0).abs() < f32::EPSILON) {
            return log_probability(logits, token);
        }
        if everywhere {
            let scaled: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
            return log_probability(&scaled, token);
        }
        // As in `draw`, so that the candidates are the same.
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut weights = vec![0.0; logits.len()];
        powers(logits, highest, 1.0 / temperature, &mut weights);
        let whole: f64 = candidates(&weights, sampling).iter().map(|token| f64::from(weights[*token as usize])).sum();
        (f64::from(logits[token as usize] - highest) / f64::from(temperature) - whole.ln()) as f32
    }
}

/// Samples a token. Returns `None` if the logits are not numbers. Equal logits are taken in the order of the vocabulary.
pub(super) fn draw(logits: &[f32], sampling: Sampling, chance: &mut ChaCha8Rng) -> Option<u32> {
    let mut best = [0];
    highest(logits, &mut best);
    let largest = *logits.get(best[0] as usize)?;
    // A NaN is never the highest, so it must be looked for.
    if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    if sampling.temperature <= 0.0 {
        return Some(best[0]);
    }
    let mut weights = vec![0.0; logits.len()];
    powers(logits, largest, 1.0 / sampling.temperature, &mut weights);
    if sampling.takes_all() {
        return pick(weights.iter().copied().enumerate(), chance).map(|token| token as u32);
    }
    pick(candidates(&weights, sampling).into_iter().map(|token| (token, weights[token as usize])), chance)
}

/// Draws one of the tokens by its weight, in the order given.
fn pick<T>(weighted: impl Iterator<Item = (T, f32)> + Clone, chance: &mut ChaCha8Rng) -> Option<T> {
    let whole: f64 = weighted.clone().map(|(_, weight)| f64::from(weight)).sum();
    let mut left = chance.random::<f64>() * whole;
    // Rounding may leave a rest behind the last one, which is taken then.
    let mut last = None;
    for (token, weight) in weighted {
        left -= f64::from(weight);
        last = Some(token);
        if left < 0.0 {
            break;
        }
    }
    last
}

/// Returns the candidate tokens: all in order, or the most probable ones first.
fn candidates(weights: &[f32], sampling: Sampling) -> Vec<u32> {
    let all = 0..weights.len() as u32;
    if sampling.takes_all() {
        return all.collect();
    }
    let mut whole: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let mut tokens: Vec<u32> = if sampling.top_k == 0 {
        // Tokens below this share are outside of the nucleus, whatever their number.
        let least = (whole * f64::from(1.0 - sampling.top_p) / weights.len() as f64) as f32;
        all.filter(|token| weights[*token as usize] >= least).collect()
    } else {
        all.collect()
    };
    if sampling.top_k > 0 && tokens.len() > sampling.top_k {
        // A selection first: sorting the whole vocabulary takes longer.
        tokens.select_nth_unstable_by(sampling.top_k - 1, |one, other| descending(weights, *one, *other));
        tokens.truncate(sampling.top_k);
        whole = tokens.iter().map(|token| f64::from(weights[*token as usize])).sum();
    }
    tokens.sort_unstable_by(|one, other| descending(weights, *one, *other));
    // The nucleus: the most probable tokens that have this weight together.
    let wanted = whole * f64::from(sampling.top_p);
    let (mut reached, mut count) = (0.0, 0);
    for token in &tokens {
        count += 1;
        reached += f64::from(weights[*token as usize]);
        if reached >= wanted {
            break;
        }
    }
    tokens.truncate(count);
    tokens
}

/// Compares tokens by number, the largest first; equal ones in the order of the vocabulary.
fn descending(numbers: &[f32], one: u32, other: u32) -> Ordering {
    numbers[other as usize].total_cmp(&numbers[one as usize]).then(one.cmp(&other))
}

/// Returns the natural logarithm of a token's probability before sampling settings apply.
pub(super) fn log_probability(logits: &[f32], token: u32) -> f32 {
    logits[token as usize] - log_of_sum(logits)
}

/// Returns the most probable tokens with their log-probabilities, in descending order; equal ones in the order of the
/// vocabulary.
pub(super) fn most_probable(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    if (1..tokens.len()).contains(&count) {
        tokens.select_nth_unstable_by(count - 1, |one, other| descending(logits, *one, *other));
    }
    tokens.truncate(count);
    tokens.sort_unstable_by(|one, other| descending(logits, *one, *other));
    let whole = log_of_sum(logits);
    tokens.into_iter().map(|token| (token, logits[token as usize] - whole)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    fn shares(logits: &[f32], sampling: Sampling) -> Vec<f32> {
        let mut chance = ChaCha8Rng::seed_from_u64(1);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[draw(logits, sampling, &mut chance).unwrap() as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        let logits = [0.0, 1.0, 2.0, 1.0];
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0 };
        let whole: f32 = logits.iter().map(|logit: &f32| logit.exp()).sum();
        for (share, logit) in shares(&logits, all).iter().zip(logits) {
            assert!((share - logit.exp() / whole).abs() < 0.015, "{share}");
        }
        let cold = shares(&logits, Sampling { temperature: 0.1, ..all });
        assert!(cold[2] > 0.999);
        assert!(shares(&logits, Sampling::GREEDY)[2] > 0.999);
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail_and_ties_go_by_order() {
        let weights = [1.0, 4.0, 2.0, 4.0, 1.0];
        let kept = |top_k, top_p| candidates(&weights, Sampling { temperature: 1.0, top_k, top_p });
        assert_eq!(kept(3, 1.0), [1, 3, 2]);
        assert_eq!(kept(1, 1.0), [1]);
        assert_eq!(kept(0, 0.5), [1, 3]);
        assert_eq!(kept(0, 0.34), [1, 3]);
        assert_eq!(kept(0, 0.9), [1, 3, 2, 0]);
        assert_eq!(kept(0, 0.01), [1]);
        assert_eq!(kept(2, 0.1), [1]);
        assert_eq!(kept(0, 1.0), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn log_probabilities_are_those_of_the_distribution_that_was_sampled_from() {
        let logits = [0.0, 1.0, 2.0, 1.0];
        let number = |temperature, top_k, top_p, token| {
            let sampling = Sampling { temperature, top_k, top_p };
            Distribution::Sampled.log_probability(&logits, token, sampling)
        };
        let softmax = |temperature: f32, kept: &[usize], token: usize| {
            let whole: f32 = kept.iter().map(|at| (logits[*at] / temperature).exp()).sum();
            ((logits[token] / temperature).exp() / whole).ln()
        };
        let near = |one: f32, other: f32| assert!((one - other).abs() < 1e-5, "{one} {other}");
        near(number(0.5, 0, 1.0, 1), softmax(0.5, &[0, 1, 2, 3], 1));
        near(number(2.0, 2, 1.0, 1), softmax(2.0, &[1, 2], 1));
        near(number(0.7, 0, 0.9, 3), softmax(0.7, &[1, 2, 3], 3));
        assert_eq!(number(1.0, 0, 1.0, 3), log_probability(&logits, 3), "to the bit");
        assert_eq!(number(0.0, 0, 1.0, 2), log_probability(&logits, 2), "the model's own");
        let own = Distribution::Model.log_probability(&logits, 1, Sampling { temperature: 0.5, top_k: 2, top_p: 0.5 });
        assert_eq!(own, log_probability(&logits, 1));
    }

    #[test]
    fn the_most_probable_tokens_stand_in_order() {
        let logits = [1.0, 3.0, 2.0, 3.0];
        let tokens = |count| most_probable(&logits, count).iter().map(|found| found.0).collect::<Vec<_>>();
        assert_eq!((tokens(0), tokens(3), tokens(9)), (vec![], vec![1, 3, 2], vec![1, 3, 2, 0]));
        assert_eq!(most_probable(&logits, 1)[0].1, log_probability(&logits, 1));
    }

    #[test]
    fn log_probabilities_sum_to_one_and_nonsense_is_none() {
        let logits = [0.5, -1.0, 3.0];
        let whole: f32 = (0..3).map(|token| log_probability(&logits, token).exp()).sum();
        assert!((whole - 1.0).abs() < 1e-5);
        let mut chance = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(draw(&[f32::NAN, 1.0], Sampling::GREEDY, &mut chance), None);
        assert_eq!(draw(&[f32::NEG_INFINITY; 2], Sampling::GREEDY, &mut chance), None);
        assert_eq!(draw(&[1.0, 1.0], Sampling::GREEDY, &mut chance), Some(0));
    }
}
