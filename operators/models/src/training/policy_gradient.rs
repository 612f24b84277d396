//! The clipped policy-gradient objective of PPO, GRPO and REINFORCE++ over sampled tokens.
//!
//! For a token with advantage `A` and ratio `r = p / p_sampled`, the loss is
//! `-min(r · A, clip(r, 1 − low, 1 + high) · A)` (PPO: Schulman et al. 2017, arXiv:1707.06347; GRPO: arXiv:2402.03300;
//! different bounds: DAPO, arXiv:2503.14476). With `importance_sampling_level: sequence`, `r` is that of the whole rollout, per
//! token: `r = exp(mean of ln p − ln p_sampled over its tokens)` (GSPO: Zheng et al. 2025, arXiv:2507.18071, equation 7).
//! With `dual_clip`, the loss of a token with a negative advantage is at most
//! `-dual_clip · A` (arXiv:1912.09729). To it is added `coefficient · KL` to a reference model, estimated from the token
//! (k1, k2, k3: Schulman, "Approximating KL divergence", 2020). `entropy · H` is subtracted from it, with the entropy `H` of
//! the distribution from which the token is sampled (A3C: Mnih et al. 2016, arXiv:1602.01783, section 4).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::example::{Example, Sampled};
use super::objective::{Coupled, Coupling, Objective, Observed, TokenLoss};

/// Largest difference of log-probabilities that counts, so that no ratio overflows (verl clamps in the same way).
const MOST: f32 = 20.0;

/// Settings of the loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct PolicyLoss {
    /// Whose ratio is clipped: that of each token, or that of the whole rollout (GSPO). For `sequence`, bounds are far narrower:
    /// 0.0003 and 0.0004 in its paper, with `aggregation: sequence_mean`. It reads the rollouts of a step once more, before the
    /// gradients.
    #[serde(skip_serializing_if = "is_default")]
    pub importance_sampling_level: ImportanceSampling,
    /// A token whose probability fell below `1 - clip_low` times the sampled one is not made less probable.
    pub clip_low: f64,
    /// A token whose probability rose above `1 + clip_high` times the sampled one is not made more probable.
    pub clip_high: f64,
    /// Limit of the ratio of tokens with a negative advantage, more than 1 (3 in verl; `null`: none).
    pub dual_clip: Option<f64>,
    /// How the losses of tokens become one.
    pub aggregation: Aggregation,
    /// Divergence from the model of the input `reference` that is added to the loss.
    pub kl: Option<Kl>,
    /// Entropy bonus: this number times the mean entropy of the sampled tokens' distributions, aggregated as the loss is, is
    /// subtracted from the loss (`entropy_coeff` in verl; with `token_mean`, `entropy_coef` in TRL). Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
}

impl Default for PolicyLoss {
    fn default() -> Self {
        let aggregation = Aggregation::default();
        let importance_sampling_level = ImportanceSampling::default();
        let (clip_low, clip_high) = (0.2, 0.2);
        Self { importance_sampling_level, clip_low, clip_high, dual_clip: None, aggregation, kl: None, entropy: None }
    }
}

/// Whose ratio of probabilities is clipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSampling {
    /// That of each token (PPO, GRPO).
    #[default]
    Token,
    /// That of the whole rollout, per token: the exponential of the mean difference of its log-probabilities (GSPO).
    Sequence,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default(level: &ImportanceSampling) -> bool {
    *level == ImportanceSampling::Token
}

/// How the losses of tokens become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Aggregation {
    /// The mean over all tokens of the step (`token-mean` in verl, `dapo` in TRL).
    #[default]
    TokenMean,
    /// The mean over the rollouts of the step of the mean over their tokens (`seq-mean-token-mean` in verl, `grpo` in TRL).
    SequenceMean,
    /// The sum over the tokens, divided by the number of rollouts and by this number of tokens (Dr. GRPO: the most tokens
    /// that a rollout may have; `dr_grpo` in TRL).
    Constant(u64),
}

/// A divergence that is added to the loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct Kl {
    /// Its factor (0.001 in Search-R1 and ReSearch).
    pub coefficient: f64,
    /// How it is estimated.
    #[serde(default)]
    pub estimator: Estimator,
    /// Multiply the estimate by the ratio of the probability now and when the token was sampled. Its gradient is then that
    /// of the divergence, on average (DeepSeek-V3.2, arXiv:2512.02556; `use_bias_correction_kl` in TRL, which does so by
    /// default).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub importance_weighted: bool,
}

/// An estimate of the divergence from a token's log-probability `p` and that of the reference, `q`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// `p − q`.
    K1,
    /// `(p − q)² / 2`.
    K2,
    /// `exp(q − p) − (q − p) − 1` (`low_var_kl` in verl, which caps it at 10).
    #[default]
    K3,
}

impl Estimator {
    /// Returns the estimate and its derivative with respect to `p`.
    pub fn of(self, p: f32, q: f32) -> TokenLoss {
        let difference = (q - p).clamp(-MOST, MOST);
        match self {
            Self::K1 => TokenLoss { value: -difference, slope: 1.0 },
            Self::K2 => TokenLoss { value: difference * difference / 2.0, slope: -difference },
            Self::K3 => TokenLoss { value: difference.exp_m1() - difference, slope: 1.0 - difference.exp() },
        }
    }
}

/// The objective.
#[derive(Clone, Debug)]
pub struct PolicyGradient {
    settings: PolicyLoss,
    /// Mean difference of the log-probabilities now and when they were sampled, of each rollout of the step, by its number.
    rollouts: BTreeMap<usize, f32>,
}

impl PolicyGradient {
    pub fn new(settings: PolicyLoss) -> Self {
        Self { settings, rollouts: BTreeMap::new() }
    }

    /// Whether a token has the ratio of its rollout.
    fn by_rollout(&self) -> bool {
        self.settings.importance_sampling_level == ImportanceSampling::Sequence
    }

    /// Returns the clipped loss of a token with a ratio, and its derivative with respect to the log-probability.
    fn clipped(&self, advantage: f32, ratio: f32) -> TokenLoss {
        let (low, high) = (1.0 - self.settings.clip_low as f32, 1.0 + self.settings.clip_high as f32);
        let limit = match self.settings.dual_clip {
            _ if advantage >= 0.0 && ratio > high => Some(high),
            _ if advantage >= 0.0 => None,
            Some(most) if ratio > most as f32 => Some(most as f32),
            _ if ratio < low => Some(low),
            _ => None,
        };
        match limit {
            // The loss no longer depends on the probability.
            Some(limit) => TokenLoss { value: -limit * advantage, slope: 0.0 },
            None => TokenLoss { value: -ratio * advantage, slope: -ratio * advantage },
        }
    }
}

/// Returns the ratio of the probability now and when the token was sampled.
fn ratio(sampled: &Sampled, at: usize, log_probability: f32) -> f32 {
    (log_probability - sampled.log_probabilities[at]).clamp(-MOST, MOST).exp()
}

impl Objective for PolicyGradient {
    fn weight(&self, example: &Example, at: usize) -> Option<f32> {
        let sampled = example.sampled.as_ref().filter(|_| example.learnt[at])?;
        Some(match self.settings.aggregation {
            Aggregation::TokenMean | Aggregation::Constant(_) => 1.0,
            Aggregation::SequenceMean => 1.0 / sampled.of_rollout.max(1) as f32,
        })
    }

    fn loss(&self, example: &Example, at: usize, log_probability: f32) -> TokenLoss {
        // Without a weight, such an example has no targets.
        let Some(sampled) = &example.sampled else { return TokenLoss { value: 0.0, slope: 0.0 } };
        let of_token = ratio(sampled, at, log_probability);
        // The slope of a rollout's ratio, times its number of tokens, is the ratio: that of a token has the same form.
        let ratio = self.rollouts.get(&sampled.rollout).map_or(of_token, |mean| mean.exp());
        let loss = self.clipped(sampled.advantages[at], ratio);
        let Some((kl, reference)) = self.settings.kl.zip(sampled.reference.as_ref()) else { return loss };
        let (mut own, factor) = (kl.estimator.of(log_probability, reference[at]), kl.coefficient as f32);
        // The derivative of the product: the ratio's is the ratio itself.
        if kl.importance_weighted {
            own = TokenLoss { value: ratio * own.value, slope: ratio * (own.slope + own.value) };
        }
        TokenLoss { value: loss.value + factor * own.value, slope: loss.slope + factor * own.slope }
    }

    fn divisor(&self, example: &Example) -> f64 {
        let tokens = example.targets() as f64;
        let share = tokens / example.sampled.as_ref().map_or(1, |sampled| sampled.of_rollout.max(1)) as f64;
        match self.settings.aggregation {
            Aggregation::TokenMean => tokens,
            Aggregation::SequenceMean => share,
            Aggregation::Constant(most) => share * most as f64,
        }
    }

    fn observe(&self, example: &Example, log_probabilities: &[f32]) -> Option<Observed> {
        let sampled = example.sampled.as_ref()?;
        let places = (1..example.tokens.len()).filter(|at| example.learnt[*at]);
        let of_sequence = self.by_rollout().then(|| mean_difference(example, sampled, log_probabilities).exp());
        let mut all: Option<Observed> = None;
        for (at, now) in places.zip(log_probabilities) {
            let ratio = of_sequence.unwrap_or_else(|| ratio(sampled, at, *now));
            let advantage = sampled.advantages[at];
            let slope = self.clipped(advantage, ratio).slope;
            let reference = sampled.reference.as_ref().map(|all| f64::from(Estimator::K3.of(*now, all[at]).value));
            let observed = Observed {
                tokens: 1.0,
                clipped: if advantage != 0.0 && slope == 0.0 { 1.0 } else { 0.0 },
                ratio: f64::from(ratio),
                kl: f64::from(Estimator::K3.of(sampled.log_probabilities[at], *now).value),
                reference_kl: reference,
                gap: f64::from((now - sampled.log_probabilities[at]).abs()),
            };
            all = Some(all.map_or(observed, |sum| sum + observed));
        }
        all
    }

    fn needs_entropy(&self) -> bool {
        true
    }

    fn entropy_bonus(&self) -> Option<f32> {
        self.settings.entropy.map(|factor| factor as f32)
    }

    fn coupling(&self) -> Option<&dyn Coupling> {
        if self.by_rollout() { Some(self) } else { None }
    }
}

impl Coupling for PolicyGradient {
    fn of_step(&self, examples: &[Example], log_probabilities: &BTreeMap<usize, Vec<f32>>) -> Coupled {
        // A rollout may have several sequences in the step: the mean is over all of them.
        let (mut sums, mut tokens) = (BTreeMap::<usize, f32>::new(), BTreeMap::<usize, usize>::new());
        for (number, found) in log_probabilities {
            let example = &examples[*number];
            let Some(sampled) = &example.sampled else { continue };
            let count = found.len();
            *sums.entry(sampled.rollout).or_default() += mean_difference(example, sampled, found) * count as f32;
            *tokens.entry(sampled.rollout).or_default() += count;
        }
        let mut rollouts = BTreeMap::new();
        for (rollout, sum) in sums {
            rollouts.insert(rollout, (sum / tokens[&rollout].max(1) as f32).clamp(-MOST, MOST));
        }
        Coupled { objective: Box::new(Self { settings: self.settings, rollouts }), of_pairs: None }
    }
}

/// Returns the mean difference of the log-probabilities of an example's sampled tokens now and when they were sampled.
fn mean_difference(example: &Example, sampled: &Sampled, log_probabilities: &[f32]) -> f32 {
    let places = (1..example.tokens.len()).filter(|at| example.learnt[*at]);
    let sum: f32 = places.zip(log_probabilities).map(|(at, now)| now - sampled.log_probabilities[at]).sum();
    sum / log_probabilities.len().max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(advantage: f32, sampled: f32, reference: f32) -> Example {
        Example {
            id: String::new(),
            question: String::new(),
            tokens: vec![5, 6, 7, 8],
            learnt: vec![false, false, true, true],
            weight: 1.0,
            paired: None,
            sampled: Some(Sampled {
                temperature: 1.0,
                log_probabilities: vec![0.0, 0.0, sampled, sampled],
                reference: Some(vec![0.0, 0.0, reference, reference]),
                advantages: vec![advantage; 4],
                rollout: 0,
                of_rollout: 4,
            }),
        }
    }

    fn of(settings: PolicyLoss) -> PolicyGradient {
        PolicyGradient::new(settings)
    }

    /// As verl computes it: the larger of two losses, and the smaller of that and the third for negative advantages.
    fn by_verl(settings: &PolicyLoss, advantage: f64, now: f64, sampled: f64) -> f64 {
        let ratio = (now - sampled).clamp(-20.0, 20.0).exp();
        let clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high);
        let larger = (-advantage * ratio).max(-advantage * clipped);
        let third = settings.dual_clip.map_or(f64::INFINITY, |most| -advantage * most);
        if advantage < 0.0 { larger.min(third) } else { larger }
    }

    #[test]
    fn losses_are_those_of_verl_and_slopes_match_finite_differences() {
        let settings = [
            PolicyLoss::default(),
            PolicyLoss { clip_low: 0.2, clip_high: 0.28, dual_clip: Some(3.0), ..PolicyLoss::default() },
        ];
        for settings in settings {
            for advantage in [1.5_f64, -0.7, 0.0] {
                for now in [-3.0_f64, -1.35, -1.0, -0.85, -0.6, 0.2, 25.0] {
                    let (objective, example) = (of(settings), example(advantage as f32, -1.0, -1.0));
                    let at = |now: f64| f64::from(objective.loss(&example, 2, now as f32).value);
                    let wanted = by_verl(&settings, advantage, now, -1.0);
                    assert!((at(now) - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{settings:?} {advantage} {now}");
                    if now < 1.0 {
                        let found = (by_verl(&settings, advantage, now + 1e-4, -1.0)
                            - by_verl(&settings, advantage, now - 1e-4, -1.0))
                            / 2e-4;
                        let slope = f64::from(objective.loss(&example, 2, now as f32).slope);
                        assert!((found - slope).abs() < 1e-3, "{settings:?} {advantage} {now}: {found} {slope}");
                    }
                }
            }
        }
    }

    #[test]
    fn divergences_are_added_with_their_slopes() {
        for (estimator, wanted) in
            [(Estimator::K1, 0.5), (Estimator::K2, 0.125), (Estimator::K3, (-0.5_f64).exp() - 0.5)]
        {
            for importance_weighted in [false, true] {
                let kl = Some(Kl { coefficient: 0.1, estimator, importance_weighted });
                let objective = of(PolicyLoss { kl, ..PolicyLoss::default() });
                let example = example(0.0, -1.0, -1.5);
                let at = |now: f32| objective.loss(&example, 2, now);
                assert!((f64::from(at(-1.0).value) - 0.1 * wanted).abs() < 1e-7, "{estimator:?}");
                let found = (at(-0.99).value - at(-1.01).value) / 0.02;
                assert!((found - at(-1.0).slope).abs() < 1e-3, "{estimator:?} {importance_weighted}");
            }
        }
    }

    #[test]
    fn aggregations_weigh_tokens_and_rollouts() {
        let of = |aggregation| of(PolicyLoss { aggregation, ..PolicyLoss::default() });
        let example = example(1.0, -1.0, -1.0);
        let weights = |aggregation| [1, 2, 3].map(|at| of(aggregation).weight(&example, at));
        assert_eq!(weights(Aggregation::TokenMean), [None, Some(1.0), Some(1.0)]);
        assert_eq!(weights(Aggregation::SequenceMean), [None, Some(0.25), Some(0.25)]);
        // Two of the four tokens of a rollout are in this sequence.
        assert_eq!(of(Aggregation::TokenMean).divisor(&example), 2.0);
        assert_eq!(of(Aggregation::SequenceMean).divisor(&example), 0.5);
        assert_eq!(of(Aggregation::Constant(100)).divisor(&example), 50.0);
    }

    #[test]
    fn what_is_clipped_and_how_far_the_policy_went_is_observed() {
        let seen = of(PolicyLoss::default()).observe(&example(1.0, -1.0, -1.5), &[-0.5, -1.0]).unwrap();
        assert_eq!((seen.tokens, seen.clipped), (2.0, 1.0));
        assert!((seen.gap - 0.5).abs() < 1e-6 && (seen.ratio - 1.0 - 0.5_f64.exp()).abs() < 1e-6);
        assert!(seen.kl > 0.0 && seen.reference_kl.unwrap() > 0.0);
        let same = of(PolicyLoss::default()).observe(&example(1.0, -1.0, -1.5), &[-1.0, -1.0]).unwrap();
        assert_eq!((same.ratio, same.kl, same.gap, same.clipped), (2.0, 0.0, 0.0, 0.0));
        assert_eq!(of(PolicyLoss::default()).observe(&Example { sampled: None, ..example(1.0, 0.0, 0.0) }, &[]), None);
    }
}
