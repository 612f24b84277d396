//! Steps with a non-linear objective: gradients against finite differences, and both backends against each other.

use std::path::Path;

use candle_core::Tensor;

use super::batch::Batch;
use super::example::{Example, Paired, Sampled};
use super::objective::{Coupling, Objective, Sft, TokenLoss};
use super::optimizer::Gradients;
use super::packing::pack;
use super::policy_gradient::{Aggregation, ImportanceSampling, PolicyGradient, PolicyLoss};
use super::preference::{Preference, PreferenceLoss};
use super::state;
use super::step::{self, DropoutSeed, Settings};
use super::student::{LoraParams, Student, Tuning};
use super::tensors;
use crate::device::Compute;

/// A clipped policy gradient (PPO, Schulman et al. 2017). The advantage is the example's weight, negative at every third
/// position.
struct Clipped {
    /// Log-probability of all tokens under the old policy.
    old: f32,
}

impl Clipped {
    fn ratio(&self, log_probability: f32) -> (f32, f32) {
        let ratio = (log_probability - self.old).exp();
        (ratio, ratio.clamp(0.4, 2.5))
    }
}

impl Objective for Clipped {
    fn weight(&self, example: &Example, at: usize) -> Option<f32> {
        example.learnt[at].then(|| 1.0 / example.targets() as f32)
    }

    fn loss(&self, example: &Example, at: usize, log_probability: f32) -> TokenLoss {
        let advantage = if at.is_multiple_of(3) { -example.weight } else { example.weight };
        let (ratio, clamped) = self.ratio(log_probability);
        let (plain, clipped) = (ratio * advantage, clamped * advantage);
        let slope = if plain <= clipped { -plain } else { 0.0 };
        TokenLoss { value: -plain.min(clipped), slope }
    }

    fn divisor(&self, _: &Example) -> f64 {
        1.0
    }
}

fn student() -> Student {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/qwen3");
    Student::load(&folder, &Tuning::Full, 0, &Compute::cpu()).unwrap()
}

fn examples() -> Vec<Example> {
    let example = |(number, length): (usize, usize)| Example {
        id: String::new(),
        question: String::new(),
        tokens: (0..length).map(|at| ((at * 37 + number * 11) % 90) as u32).collect(),
        learnt: (0..length).map(|at| at % 4 != 1).collect(),
        weight: 1.0 + number as f32,
        sampled: None,
        paired: None,
    };
    [12, 30, 7].into_iter().enumerate().map(example).collect()
}

/// Clips ratios to the mean log-probability of all tokens.
fn clipped(student: &Student, examples: &[Example]) -> Clipped {
    let found = step::evaluate(student, &[0, 1, 2], examples, &Sft::default(), 64).unwrap();
    let all: Vec<f32> = found.log_probabilities.into_values().flatten().collect();
    Clipped { old: all.iter().sum::<f32>() / all.len() as f32 }
}

#[test]
fn gradients_of_an_objective_match_finite_differences_of_its_loss() {
    let (student, examples) = (student(), examples());
    let (objective, mut gradients) = (clipped(&student, &examples), Gradients::new());
    let settings = Settings { objective: &objective, pass_tokens: 32, checkpointing: false, dropout: None };
    let outcome = step::learn(&student, &[1, 2, 0], &examples, settings, &mut gradients).unwrap();
    let found: Vec<usize> = outcome.log_probabilities.values().map(Vec::len).collect();
    assert_eq!(found, examples.iter().map(Example::targets).collect::<Vec<_>>(), "in the order of the examples");
    let all: Vec<f32> = outcome.log_probabilities.into_values().flatten().collect();
    let ratios: Vec<(f32, f32)> = all.iter().map(|number| objective.ratio(*number)).collect();
    let clipped = ratios.iter().filter(|(ratio, clamped)| ratio != clamped).count();
    assert!(clipped > 0 && clipped < ratios.len(), "some ratios are clipped: {all:?}");

    check_slopes(&student, &examples, &objective, &gradients);
}

/// Checks gradients of all examples against finite differences of the loss, along the gradient.
fn check_slopes(student: &Student, examples: &[Example], objective: &dyn Objective, gradients: &Gradients) {
    for name in ["model.norm.weight", "model.layers.1.mlp.down_proj.weight"] {
        let var = &student.weights[name];
        let numbers = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (weight, gradient) = (numbers(var), numbers(&gradients[name]));
        let norm = gradient.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
        let loss = |by: f64| {
            let moved = weight.iter().zip(&gradient).map(|(number, slope)| number + (by / norm) as f32 * slope);
            state::set(var, moved.collect()).unwrap();
            step::evaluate(student, &[0, 1, 2], examples, objective, 64).unwrap().loss
        };
        let slope = (loss(1e-3) - loss(-1e-3)) / 2e-3;
        state::set(var, weight.clone()).unwrap();
        assert!((slope - norm).abs() < 0.05 * norm, "{name}: {slope} {norm}");
    }
}

/// The bonus alone, since the advantages are 0: the loss is the factor times the entropy that is reported, at the temperature
/// of sampling.
#[test]
fn gradients_of_an_entropy_bonus_match_finite_differences() {
    let (student, mut examples) = (student(), examples());
    for (example, temperature) in examples.iter_mut().zip([1.0, 0.7, 1.6]) {
        let (zeros, of_rollout) = (vec![0.0; example.tokens.len()], example.targets());
        let (log_probabilities, advantages) = (zeros.clone(), zeros);
        let (reference, rollout) = (None, 0);
        let sampled = Sampled { temperature, log_probabilities, reference, advantages, rollout, of_rollout };
        example.sampled = Some(sampled);
    }
    for aggregation in [Aggregation::TokenMean, Aggregation::SequenceMean, Aggregation::Constant(30)] {
        let settings = PolicyLoss { aggregation, entropy: Some(0.5), ..PolicyLoss::default() };
        let (objective, mut gradients) = (PolicyGradient::new(settings), Gradients::new());
        let settings = Settings { objective: &objective, pass_tokens: 32, checkpointing: false, dropout: None };
        let outcome = step::learn(&student, &[1, 2, 0], &examples, settings, &mut gradients).unwrap();
        assert!(outcome.loss < 0.0, "{}", outcome.loss);
        if aggregation == Aggregation::TokenMean {
            let wanted = -0.5 * outcome.entropy.unwrap();
            assert!((outcome.loss - wanted).abs() < 1e-5, "{} {wanted}", outcome.loss);
        }
        check_slopes(&student, &examples, &objective, &gradients);
    }
}

/// The first two sequences are of one rollout and have one ratio; the third one has another.
#[test]
fn gradients_of_the_ratio_of_whole_rollouts_match_finite_differences() {
    let (student, mut examples) = (student(), examples());
    let now = step::evaluate(&student, &[0, 1, 2], &examples, &Sft::default(), 64).unwrap().log_probabilities;
    for (number, example) in examples.iter_mut().enumerate() {
        let mut log_probabilities = vec![0.0; example.tokens.len()];
        let places = (1..example.tokens.len()).filter(|at| example.learnt[*at]);
        for (at, now) in places.zip(&now[&number]) {
            log_probabilities[at] = now - 0.05 * (number as f32 - 0.5);
        }
        let advantages = vec![[1.5, 1.5, -0.7][number]; example.tokens.len()];
        let (rollout, of_rollout) = (number / 2, example.targets());
        let (temperature, reference) = (1.0, None);
        let sampled = Sampled { temperature, log_probabilities, reference, advantages, rollout, of_rollout };
        // Two rollouts of a table may have one id.
        (example.sampled, example.id) = (Some(sampled), "same".to_owned());
    }
    let importance_sampling_level = ImportanceSampling::Sequence;
    let settings = PolicyLoss { importance_sampling_level, ..PolicyLoss::default() };
    let (objective, mut gradients) = (PolicyGradient::new(settings), Gradients::new());
    let settings = Settings { objective: &objective, pass_tokens: 32, checkpointing: false, dropout: None };
    let outcome = step::learn(&student, &[1, 2, 0], &examples, settings, &mut gradients).unwrap();
    let counts: Vec<f64> = examples.iter().map(|example| example.targets() as f64).collect();
    let mean = (0.05 * -0.5 * counts[0] + 0.05 * 0.5 * counts[1]) / (counts[0] + counts[1]);
    let by_hand = -1.5 * mean.exp() * (counts[0] + counts[1]) + 0.7 * 0.075_f64.exp() * counts[2];
    let by_hand = by_hand / counts.iter().sum::<f64>();
    assert!((outcome.loss - by_hand).abs() < 1e-5, "{} {by_hand}", outcome.loss);
    check_slopes(&student, &examples, &objective, &gradients);
}

#[test]
fn weights_of_examples_multiply_their_loss() {
    let (student, examples) = (student(), examples());
    let sft = Sft::default();
    let alone = |number: usize| {
        let mut gradients = Gradients::new();
        let settings = Settings { objective: &sft, pass_tokens: 64, checkpointing: false, dropout: None };
        let mean = step::learn(&student, &[number], &examples, settings, &mut gradients).unwrap().loss;
        (mean, gradients)
    };
    let mut gradients = Gradients::new();
    let settings = Settings { objective: &sft, pass_tokens: 64, checkpointing: false, dropout: None };
    let loss = step::learn(&student, &[0, 1, 2], &examples, settings, &mut gradients).unwrap().loss;
    // Σ w·n·mean / Σ w·n, by hand: the weights are 1, 2 and 3, `n` are the predicted tokens.
    let shares: Vec<f64> = examples.iter().map(|one| f64::from(one.weight) * one.targets() as f64).collect();
    let whole: f64 = shares.iter().sum();
    let parts: Vec<_> = (0..3).map(alone).collect();
    let by_hand: f64 = parts.iter().zip(&shares).map(|((mean, _), share)| mean * share / whole).sum();
    assert!((loss - by_hand).abs() < 1e-5, "{loss} {by_hand}");
    for name in ["model.norm.weight", "model.layers.1.mlp.down_proj.weight"] {
        let mut sum = gradients[name].zeros_like().unwrap();
        for ((_, one), share) in parts.iter().zip(&shares) {
            sum = (sum + (&one[name] * (share / whole)).unwrap()).unwrap();
        }
        let largest = |tensor: &Tensor| tensor.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        let (apart, scale) = (largest(&(&gradients[name] - &sum).unwrap()), largest(&sum));
        assert!(apart < 1e-4 * scale, "{name}: {apart} of {scale}");
    }
    let unweighted: Vec<_> = examples.iter().map(|one| Example { weight: 1.0, ..one.clone() }).collect();
    let mean = step::evaluate(&student, &[0, 1, 2], &unweighted, &sft, 64).unwrap().loss;
    assert!((mean - loss).abs() > 1e-4, "{mean} {loss}");
    let silent: Vec<_> =
        examples.iter().map(|one| Example { weight: f32::from(one.weight < 2.0), ..one.clone() }).collect();
    let first = step::evaluate(&student, &[0, 1, 2], &silent, &sft, 64).unwrap().loss;
    assert!((first - parts[0].0).abs() < 1e-5, "examples of weight 0 do not count");
}

#[test]
fn both_backends_agree_on_an_objective() {
    let (student, examples) = (student(), examples());
    let objective = clipped(&student, &examples);
    let lengths: Vec<_> = examples.iter().map(|example| example.tokens.len()).enumerate().collect();
    for pass in pack(&lengths, 40) {
        let batch = Batch::new(&pass, &examples, &objective);
        for checkpointing in [false, true] {
            let (mut one, mut other) = (Gradients::new(), Gradients::new());
            let loops = step::pass(&student, &batch, checkpointing, &mut one).unwrap();
            let tensors = tensors::pass(&student, &batch, checkpointing, &mut other).unwrap();
            assert!((loops.loss - tensors.loss).abs() < 1e-4 * loops.loss.abs().max(1.0), "{loops:?} {tensors:?}");
            for (name, gradient) in &one {
                let largest = |tensor: &Tensor| tensor.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
                let (apart, scale) = (largest(&(gradient - &other[name]).unwrap()), largest(gradient));
                assert!(apart <= 1e-4 * scale, "{name}: {apart} of {scale}");
            }
        }
    }
}

/// The loss follows from the first reading, the log-probabilities are those of the second one.
#[test]
fn both_readings_of_a_coupled_step_have_the_same_dropout() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/qwen3");
    let lora = LoraParams { rank: 2, dropout: 0.5, ..LoraParams::default() };
    let student = Student::load(&folder, &Tuning::Lora(lora), 0, &Compute::cpu()).unwrap();
    for var in student.weights.values() {
        let numbers = (0..var.elem_count()).map(|number| (number as f32).sin() * 0.1);
        state::set(var, numbers.collect()).unwrap();
    }
    let mut examples = examples();
    for (number, example) in examples.iter_mut().enumerate() {
        example.paired = Some(Paired { pair: 0, chosen: number > 0, reference: -20.0 });
    }
    let preference = Preference { settings: PreferenceLoss::default() };
    let learn = |step| {
        let dropout = Some(DropoutSeed { seed: 3, step });
        let settings = Settings { objective: &preference, pass_tokens: 32, checkpointing: false, dropout };
        step::learn(&student, &[0, 1, 2], &examples, settings, &mut Gradients::new()).unwrap()
    };
    let outcome = learn(0);
    assert_eq!(outcome.loss, preference.of_step(&examples, &outcome.log_probabilities).of_pairs.unwrap().loss);
    assert!((outcome.loss - learn(1).loss).abs() > 1e-6, "other steps have other masks");
}
