//! Objectives: the loss of each predicted token and its slope, the same for both backends.

use std::collections::BTreeMap;

use super::example::Example;
use super::state::PreferenceStep;

/// Loss of one predicted token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLoss {
    pub value: f32,
    /// Derivative of `value` with respect to the token's log-probability.
    pub slope: f32,
}

/// What training minimises. The loss of a step is `Σ weight · loss / Σ divisor`: the first sum over the predicted tokens,
/// the second over the examples.
///
/// A backend computes log-probabilities, passes them to [`Self::loss`], and propagates `weight · slope` back through the
/// softmax. The objective therefore sees no logits, and logits are held for some tokens at a time. (A bonus for entropy is
/// propagated by the backend alone.) Whatever else it
/// needs (advantages, log-probabilities of another policy) is read from the example, by the token's position `at`.
pub trait Objective: Sync {
    /// Returns the weight of token `at`, or `None` if the token is not predicted.
    fn weight(&self, example: &Example, at: usize) -> Option<f32>;

    /// Returns the loss of token `at` before it is weighted.
    fn loss(&self, example: &Example, at: usize, log_probability: f32) -> TokenLoss;

    /// Returns what the example adds to the divisor of the step's loss.
    fn divisor(&self, example: &Example) -> f64;

    /// Returns figures of an example, from the log-probabilities of its predicted tokens before the step.
    fn observe(&self, _: &Example, _: &[f32]) -> Option<Observed> {
        None
    }

    /// Whether the entropy of the predicted tokens is measured. It takes another pass over the logits.
    fn needs_entropy(&self) -> bool {
        false
    }

    /// Returns the factor of the entropy of a predicted token that is subtracted from its loss, before the loss is weighted.
    /// Only with [`Self::needs_entropy`].
    fn entropy_bonus(&self) -> Option<f32> {
        None
    }

    /// Returns what knows whole examples, if the loss of a token depends on them.
    fn coupling(&self) -> Option<&dyn Coupling> {
        None
    }
}

/// An objective whose loss of a token depends on the log-probabilities of other tokens of the step. The examples are read
/// twice: first for these log-probabilities, then by the objective that follows from them, for the gradients. Both times
/// they are packed alike and have the same dropout, so that the log-probabilities are the same to the bit.
pub trait Coupling: Sync {
    /// Returns the objective of a step, from the log-probabilities of the predicted tokens of its examples (the key is the
    /// number of the example).
    fn of_step(&self, examples: &[Example], log_probabilities: &BTreeMap<usize, Vec<f32>>) -> Coupled;
}

/// The objective of one step.
pub struct Coupled {
    pub objective: Box<dyn Objective>,
    /// Of an objective over pairs, whose tokens have slopes but no losses of their own.
    pub of_pairs: Option<PairsOutcome>,
}

/// What the pairs of a step came to.
pub struct PairsOutcome {
    /// Loss of the step.
    pub loss: f64,
    pub figures: PreferenceStep,
}

/// Sums over the tokens that a model wrote, for the figures of a step of reinforcement learning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    pub tokens: f64,
    /// Tokens that are clipped.
    pub clipped: f64,
    /// Ratio of the probabilities now and when they were sampled.
    pub ratio: f64,
    /// Divergence from the policy that sampled.
    pub kl: f64,
    /// Divergence from the reference model.
    pub reference_kl: Option<f64>,
    /// The largest difference of a log-probability now and when it was sampled.
    pub gap: f64,
}

impl std::ops::Add for Observed {
    type Output = Self;

    /// Returns the sums over both; of the gaps, the larger one.
    fn add(self, other: Self) -> Self {
        // Only some rollouts of a step may have been measured.
        let both = self.reference_kl.zip(other.reference_kl).map(|(one, other)| one + other);
        Self {
            tokens: self.tokens + other.tokens,
            clipped: self.clipped + other.clipped,
            ratio: self.ratio + other.ratio,
            kl: self.kl + other.kl,
            reference_kl: both.or(self.reference_kl).or(other.reference_kl),
            gap: self.gap.max(other.gap),
        }
    }
}

/// Supervised fine-tuning: the negative log-probability of the tokens, averaged by weight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sft {
    /// Weight of tokens that the model did not write (model tokens have weight 1). With 0 they are not predicted.
    pub context_weight: f32,
}

impl Objective for Sft {
    fn weight(&self, example: &Example, at: usize) -> Option<f32> {
        let learnt = example.learnt[at];
        let share = if learnt { 1.0 } else { self.context_weight };
        (learnt || share > 0.0).then_some(example.weight * share)
    }

    fn loss(&self, _: &Example, _: usize, log_probability: f32) -> TokenLoss {
        TokenLoss { value: -log_probability, slope: -1.0 }
    }

    fn divisor(&self, example: &Example) -> f64 {
        let context = example.tokens.len().saturating_sub(1 + example.targets());
        f64::from(example.weight) * (example.targets() as f64 + context as f64 * f64::from(self.context_weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Example {
        Example {
            id: String::new(),
            question: String::new(),
            tokens: vec![5, 6, 7, 8],
            learnt: vec![false, false, true, true],
            weight: 0.5,
            sampled: None,
            paired: None,
        }
    }

    #[test]
    fn sft_predicts_the_models_tokens_and_the_context_where_it_has_a_weight() {
        let weights = |context_weight: f32| [1, 2, 3].map(|at| Sft { context_weight }.weight(&example(), at));
        assert_eq!(weights(0.0), [None, Some(0.5), Some(0.5)]);
        assert_eq!(weights(0.25), [Some(0.125), Some(0.5), Some(0.5)]);
        let unweighted = Example { weight: 0.0, ..example() };
        assert_eq!(Sft::default().weight(&unweighted, 2), Some(0.0), "predicted, though it does not count");
        for context_weight in [0.0, 0.25] {
            let sft = Sft { context_weight };
            let sum: f64 = (1..4).filter_map(|at| sft.weight(&example(), at)).map(f64::from).sum();
            assert!((sft.divisor(&example()) - sum).abs() < 1e-12, "the divisor is the sum of the weights");
        }
    }

    #[test]
    fn slopes_match_finite_differences() {
        let (sft, step) = (Sft::default(), 1e-2);
        for log_probability in [-6.0, -0.5, -0.01] {
            let at = |number: f32| sft.loss(&example(), 2, number);
            let found = (at(log_probability + step).value - at(log_probability - step).value) / (2.0 * step);
            assert!((found - at(log_probability).slope).abs() < 1e-3, "{log_probability}: {found}");
        }
        assert_eq!(sft.loss(&example(), 2, -0.75).value, 0.75);
    }
}
