//! Preference training: direct preference optimisation (DPO) and IPO over pairs of rollouts.
//!
//! With `d = (ln π(chosen) − ln ref(chosen)) − (ln π(rejected) − ln ref(rejected))`, where π is the policy, ref the reference
//! model, and a rollout's probability the product of those of the tokens that its model wrote, the loss of a pair is
//!
//! - `sigmoid`: `−(1 − ε) ln σ(β d) − ε ln σ(−β d)` (DPO: Rafailov et al. 2023, arXiv:2305.18290, equation 7; label
//!   smoothing ε: Mitchell 2023, "A note on DPO with noisy preferences & relationship to IPO");
//! - `ipo`: `(d′ − 1 / (2 β))²`, where d′ is d with means per token instead of sums (Azar et al. 2023, arXiv:2310.12036,
//!   equation 17; means as in TRL).
//!
//! The loss of a step is the mean over its pairs, plus `sft_weight` times the mean negative log-probability of the tokens of
//! the better rollouts (Pang et al. 2024, arXiv:2404.19733).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::example::Example;
use super::objective::{Coupled, Coupling, Objective, PairsOutcome, TokenLoss};
use super::state::PreferenceStep;

/// Settings of the loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct PreferenceLoss {
    /// Strength of the tie to the reference model: small values let the policy go far from it.
    pub beta: f64,
    /// How the difference of a pair becomes a loss.
    pub kind: PreferenceKind,
    /// Share of the pairs that are taken to be the wrong way round (from 0 to under 0.5), with `kind: sigmoid`.
    pub label_smoothing: f64,
    /// Weight of the negative log-probability per token of the better rollouts, as in supervised fine-tuning
    /// (`rpo_alpha`, or the loss `sft`, in TRL).
    pub sft_weight: f64,
}

impl Default for PreferenceLoss {
    fn default() -> Self {
        Self { beta: 0.1, kind: PreferenceKind::default(), label_smoothing: 0.0, sft_weight: 0.0 }
    }
}

/// How the difference of a pair becomes a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreferenceKind {
    /// DPO: the negative logarithm of the probability that the better rollout is preferred.
    #[default]
    Sigmoid,
    /// IPO: the squared distance of the difference per token from `1 / (2 beta)`.
    Ipo,
}

/// The objective.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    pub settings: PreferenceLoss,
}

/// One side of a pair: sums over its tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// Log-probability under the policy less that under the reference model.
    log_ratio: f64,
    tokens: usize,
    /// Negative log-probability under the policy.
    surprise: f64,
}

/// A pair: the chosen side, then the other one.
#[derive(Clone, Copy, Debug, Default)]
struct PairSums {
    sides: [Side; 2],
    sequences: usize,
}

/// Returns ln σ(x).
fn log_sigmoid(x: f64) -> f64 {
    // No power of a large number: −ln(1 + e⁻ˣ) would overflow.
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    log_sigmoid(x).exp()
}

impl PreferenceLoss {
    /// Returns the loss of a pair and its derivatives with respect to the log-probability of a token of either side.
    fn of(&self, pair: &PairSums) -> (f64, [f64; 2]) {
        let [chosen, rejected] = pair.sides;
        match self.kind {
            PreferenceKind::Sigmoid => {
                let scaled = self.beta * (chosen.log_ratio - rejected.log_ratio);
                let (right, wrong) = (1.0 - self.label_smoothing, self.label_smoothing);
                let loss = -right * log_sigmoid(scaled) - wrong * log_sigmoid(-scaled);
                let slope = self.beta * (wrong * sigmoid(scaled) - right * sigmoid(-scaled));
                (loss, [slope, -slope])
            }
            PreferenceKind::Ipo => {
                let counts = [chosen, rejected].map(|side| side.tokens.max(1) as f64);
                let apart = chosen.log_ratio / counts[0] - rejected.log_ratio / counts[1] - 0.5 / self.beta;
                (apart * apart, [2.0 * apart / counts[0], -2.0 * apart / counts[1]])
            }
        }
    }
}

impl Objective for Preference {
    fn weight(&self, example: &Example, at: usize) -> Option<f32> {
        example.paired.filter(|_| example.learnt[at]).map(|_| 1.0)
    }

    /// Returns what every policy has before the sums of the pairs are known: nothing to learn.
    fn loss(&self, _: &Example, _: usize, log_probability: f32) -> TokenLoss {
        TokenLoss { value: -log_probability, slope: 0.0 }
    }

    fn divisor(&self, example: &Example) -> f64 {
        example.targets() as f64
    }

    fn coupling(&self) -> Option<&dyn Coupling> {
        Some(self)
    }
}

impl Coupling for Preference {
    fn of_step(&self, examples: &[Example], log_probabilities: &BTreeMap<usize, Vec<f32>>) -> Coupled {
        let mut pairs = BTreeMap::<usize, PairSums>::new();
        for (number, found) in log_probabilities {
            let Some(paired) = examples[*number].paired else { continue };
            let sum: f64 = found.iter().map(|number| f64::from(*number)).sum();
            let pair = pairs.entry(paired.pair).or_default();
            let side = &mut pair.sides[usize::from(!paired.chosen)];
            side.log_ratio += sum - paired.reference;
            side.surprise -= sum;
            side.tokens += found.len();
            pair.sequences += 1;
        }
        // The loss is a mean over pairs, the part of supervised fine-tuning one over the tokens of the better rollouts.
        let count = pairs.len().max(1) as f64;
        let tokens = pairs.values().map(|pair| pair.sides[0].tokens).sum::<usize>().max(1) as f64;
        let sft_slope = -self.settings.sft_weight * count / tokens;
        let surprise: f64 = pairs.values().map(|pair| pair.sides[0].surprise).sum();
        let (mut loss, mut slopes) = (self.settings.sft_weight * surprise / tokens, BTreeMap::new());
        let mut figures = PreferenceStep { chosen: 0.0, rejected: 0.0, accuracy: 0.0 };
        // In the order of the pairs: sums are the same, whatever the passes were.
        for (number, pair) in &pairs {
            let (of_pair, [chosen, rejected]) = self.settings.of(pair);
            loss += of_pair / count;
            slopes
                .insert(*number, Slopes { sides: [chosen + sft_slope, rejected], share: 1.0 / pair.sequences as f64 });
            let rewards = pair.sides.map(|side| self.settings.beta * side.log_ratio);
            figures.chosen += rewards[0] / count;
            figures.rejected += rewards[1] / count;
            figures.accuracy += if rewards[0] > rewards[1] { 1.0 / count } else { 0.0 };
        }
        Coupled { objective: Box::new(PairedStep { slopes }), of_pairs: Some(PairsOutcome { loss, figures }) }
    }
}

/// Derivatives of a pair's loss with respect to the log-probability of a token of either side.
#[derive(Clone, Copy, Debug)]
struct Slopes {
    sides: [f64; 2],
    /// Share of the pair that one of its sequences is.
    share: f64,
}

/// The objective of a step whose pairs are known.
struct PairedStep {
    slopes: BTreeMap<usize, Slopes>,
}

impl PairedStep {
    fn slopes(&self, example: &Example) -> Option<(Slopes, usize)> {
        let paired = example.paired?;
        Some((*self.slopes.get(&paired.pair)?, usize::from(!paired.chosen)))
    }
}

impl Objective for PairedStep {
    fn weight(&self, example: &Example, at: usize) -> Option<f32> {
        self.slopes(example).filter(|_| example.learnt[at]).map(|_| 1.0)
    }

    fn loss(&self, example: &Example, _: usize, log_probability: f32) -> TokenLoss {
        // The value is not the loss, which belongs to the pair; only the slope counts.
        let slope = self.slopes(example).map_or(0.0, |(slopes, side)| slopes.sides[side] as f32);
        TokenLoss { value: slope * log_probability, slope }
    }

    fn divisor(&self, example: &Example) -> f64 {
        self.slopes(example).map_or(0.0, |(slopes, _)| slopes.share)
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::Paired;
    use super::*;

    /// Two pairs; the rejected side of the second has two sequences.
    fn examples() -> Vec<Example> {
        let example = |(pair, chosen, length, reference): (usize, bool, usize, f64)| Example {
            id: String::new(),
            question: String::new(),
            tokens: vec![5; length],
            learnt: (0..length).map(|at| at > 1).collect(),
            weight: 1.0,
            sampled: None,
            paired: Some(Paired { pair, chosen, reference }),
        };
        [(0, true, 4, -2.0), (0, false, 5, -3.5), (1, true, 6, -1.0), (1, false, 3, -0.25), (1, false, 4, -4.0)]
            .map(example)
            .into()
    }

    fn found(moved: Option<(usize, usize, f32)>) -> BTreeMap<usize, Vec<f32>> {
        let numbers = |(number, example): (usize, &Example)| {
            (number, (0..example.targets()).map(|at| -0.3 - 0.2 * (number + at) as f32).collect::<Vec<_>>())
        };
        let mut all: BTreeMap<usize, Vec<f32>> = examples().iter().enumerate().map(numbers).collect();
        if let Some((number, at, by)) = moved {
            all.get_mut(&number).unwrap()[at] += by;
        }
        all
    }

    #[test]
    fn slopes_of_every_token_match_finite_differences() {
        let settings = [
            PreferenceLoss::default(),
            PreferenceLoss { beta: 0.7, label_smoothing: 0.2, sft_weight: 0.5, ..PreferenceLoss::default() },
            PreferenceLoss { kind: PreferenceKind::Ipo, ..PreferenceLoss::default() },
        ];
        for settings in settings {
            let (preference, examples) = (Preference { settings }, examples());
            let at = |moved| preference.of_step(&examples, &found(moved));
            let objective = at(None).objective;
            let divisor: f64 = examples.iter().map(|example| objective.divisor(example)).sum();
            assert!((divisor - 2.0).abs() < 1e-12, "the number of pairs");
            for (number, example) in examples.iter().enumerate() {
                for token in 0..example.targets() {
                    let loss = |by: f32| at(Some((number, token, by))).of_pairs.unwrap().loss;
                    let wanted = (loss(0.01) - loss(-0.01)) / 0.02;
                    let slope = f64::from(objective.loss(example, token + 2, -1.0).slope) / divisor;
                    assert!(
                        (slope - wanted).abs() < 1e-4 * wanted.abs().max(0.1),
                        "{settings:?} {number} {slope} {wanted}"
                    );
                }
                assert_eq!([0, 1, 2].map(|at| objective.weight(example, at)), [None, None, Some(1.0)]);
            }
        }
    }

    #[test]
    fn a_policy_that_is_its_reference_has_the_loss_of_a_coin() {
        let mut examples = examples();
        for (number, found) in found(None) {
            let sum = found.iter().map(|number| f64::from(*number)).sum();
            examples[number].paired.as_mut().unwrap().reference = sum;
        }
        let preference = Preference { settings: PreferenceLoss::default() };
        let PairsOutcome { loss, figures } = preference.of_step(&examples, &found(None)).of_pairs.unwrap();
        assert!((loss - 2.0_f64.ln()).abs() < 1e-12);
        assert_eq!((figures.chosen, figures.rejected, figures.accuracy), (0.0, 0.0, 0.0));
        assert!(preference.of_step(&[], &BTreeMap::new()).of_pairs.unwrap().loss.abs() < 1e-12, "no pairs");
    }

    #[test]
    fn large_differences_stay_finite() {
        for x in [-1e6, -40.0, 0.0, 40.0, 1e6] {
            assert!(log_sigmoid(x).is_finite() && (0.0..=1.0).contains(&sigmoid(x)), "{x}");
        }
        assert!((log_sigmoid(0.3) - (1.0 / (1.0 + (-0.3_f64).exp())).ln()).abs() < 1e-12);
    }
}
