//! Losses, gradients and steps of reinforcement learning and preferences compared with TRL and verl
//! (`scripts/reference_rl.py`).

use std::collections::BTreeMap;

use candle_core::Tensor;

use super::batch::Batch;
use super::example::{Example, Paired, Sampled};
use super::objective::{Objective, Sft};
use super::optimizer::{AdamParams, AdamW, Gradients, norm};
use super::packing::pack;
use super::policy_gradient::ImportanceSampling::Sequence;
use super::policy_gradient::{Aggregation, Estimator, Kl, PolicyGradient, PolicyLoss};
use super::preference::{Preference, PreferenceKind, PreferenceLoss};
use super::reference_tests::{examples, model, numbers, reference};
use super::step::{self, Outcome, Settings};
use super::student::{Student, Tuning};
use super::tensors;
use crate::device::Compute;

type Vectors = BTreeMap<String, Tensor>;

/// Weights whose gradients are recorded.
const GRADIENTS: [&str; 2] = ["model.norm.weight", "model.layers.0.self_attn.k_proj.weight"];

/// Cuts numbers of all tokens into those of each sequence.
fn cut(examples: &[Example], all: &Tensor) -> Vec<Vec<f32>> {
    let (all, mut at) = (numbers(all), 0);
    let of_example = |example: &Example| {
        let part = all[at..at + example.tokens.len()].iter().map(|number| *number as f32).collect();
        at += example.tokens.len();
        part
    };
    examples.iter().map(of_example).collect()
}

/// Returns the sequences as rollouts that were sampled at a temperature.
fn rollouts(vectors: &Vectors, temperature: &str) -> Vec<Example> {
    let mut examples = examples(vectors);
    let sampled = cut(&examples, &vectors[&format!("sampled/{temperature}")]);
    let reference = cut(&examples, &vectors[&format!("reference/{temperature}")]);
    let advantages = numbers(&vectors["advantages"]);
    for (number, example) in examples.iter_mut().enumerate() {
        example.sampled = Some(Sampled {
            temperature: temperature.parse().unwrap(),
            log_probabilities: sampled[number].clone(),
            reference: Some(reference[number].clone()),
            advantages: vec![advantages[number] as f32; example.tokens.len()],
            rollout: number,
            of_rollout: example.targets(),
        });
    }
    examples
}

fn student() -> Student {
    Student::load(&model(), &Tuning::Full, 0, &Compute::cpu()).unwrap()
}

fn learn(examples: &[Example], objective: &dyn Objective) -> (Outcome, Gradients) {
    let all: Vec<usize> = (0..examples.len()).collect();
    let (mut gradients, dropout) = (Gradients::new(), None);
    let settings = Settings { objective, pass_tokens: 60, checkpointing: false, dropout };
    (step::learn(&student(), &all, examples, settings, &mut gradients).unwrap(), gradients)
}

/// Returns the gradients by tensor operations.
fn learn_by_tensors(examples: &[Example], objective: &dyn Objective) -> Gradients {
    let (student, all): (_, Vec<usize>) = (student(), (0..examples.len()).collect());
    let found = step::evaluate(&student, &all, examples, &Sft::default(), 60).unwrap().log_probabilities;
    let coupled = objective.coupling().map(|coupling| coupling.of_step(examples, &found).objective);
    let objective = coupled.as_deref().unwrap_or(objective);
    let lengths: Vec<_> = examples.iter().map(|example| example.tokens.len()).enumerate().collect();
    let divisor: f64 = examples.iter().map(|example| objective.divisor(example)).sum();
    let mut gradients = Gradients::new();
    for pass in pack(&lengths, 60) {
        let mut batch = Batch::new(&pass, examples, objective);
        batch.scale = 1.0 / divisor;
        let outcome = tensors::pass(&student, &batch, false, &mut gradients).unwrap();
        assert_eq!(outcome.entropy > 0.0, objective.needs_entropy());
    }
    gradients
}

/// Asserts that loss and gradients are those recorded under `name`, by both backends.
fn assert_is(vectors: &Vectors, name: &str, examples: &[Example], objective: &dyn Objective) -> Outcome {
    let (outcome, by_loops) = learn(examples, objective);
    let wanted = numbers(&vectors[&format!("{name}/loss")])[0];
    assert!((outcome.loss - wanted).abs() < 1e-5 * wanted.abs().max(1.0), "{name}: {} {wanted}", outcome.loss);
    for gradients in [by_loops, learn_by_tensors(examples, objective)] {
        let length = numbers(&vectors[&format!("{name}/norm")])[0];
        assert!((norm(&gradients).unwrap() - length).abs() < 2e-4 * length, "{name}: {:?} {length}", norm(&gradients));
        for weight in GRADIENTS {
            let (found, wanted) = (numbers(&gradients[weight]), numbers(&vectors[&format!("{name}/{weight}")]));
            let scale = wanted.iter().fold(0.0_f64, |most, number| most.max(number.abs()));
            let apart = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(apart < 5e-4 * scale, "{name} {weight}: {apart} of {scale}");
        }
    }
    outcome
}

fn loss(change: impl FnOnce(&mut PolicyLoss)) -> PolicyGradient {
    let mut settings = PolicyLoss::default();
    change(&mut settings);
    PolicyGradient::new(settings)
}

#[test]
fn losses_and_gradients_are_those_of_trl() {
    let vectors = reference("grpo.safetensors");
    let k3 = |importance_weighted| Kl { coefficient: 0.3, estimator: Estimator::K3, importance_weighted };
    let settings = [
        ("grpo", loss(|loss| loss.aggregation = Aggregation::SequenceMean)),
        ("dapo", loss(|_| ())),
        ("bnpo", loss(|_| ())),
        ("dr_grpo", loss(|loss| loss.aggregation = Aggregation::Constant(40))),
        ("clip", loss(|loss| (loss.clip_low, loss.clip_high) = (0.1, 0.28))),
        ("dual", loss(|loss| (loss.clip_high, loss.dual_clip) = (0.28, Some(1.5)))),
        ("k3", loss(|loss| (loss.aggregation, loss.kl) = (Aggregation::SequenceMean, Some(k3(false))))),
        ("k3_weighted", loss(|loss| (loss.aggregation, loss.kl) = (Aggregation::SequenceMean, Some(k3(true))))),
        ("bonus", loss(|loss| loss.entropy = Some(0.4))),
        (
            "gspo",
            loss(|loss| {
                let aggregation = Aggregation::SequenceMean;
                *loss = PolicyLoss { importance_sampling_level: Sequence, aggregation, ..*loss };
            }),
        ),
        (
            "gspo_narrow",
            loss(|loss| {
                let (clip_low, clip_high, kl) = (3e-4, 4e-4, Some(k3(false)));
                *loss = PolicyLoss { importance_sampling_level: Sequence, clip_low, clip_high, kl, ..*loss };
            }),
        ),
    ];
    for temperature in ["1.0", "0.7"] {
        let examples = rollouts(&vectors, temperature);
        for (name, objective) in &settings {
            let name = format!("{temperature}/{name}");
            let outcome = assert_is(&vectors, &name, &examples, objective);
            let (found, wanted) = (outcome.entropy.unwrap(), numbers(&vectors[&format!("{name}/entropy")])[0]);
            assert!((found - wanted).abs() < 1e-4, "{name}: entropy {found} {wanted}");
        }
    }
}

#[test]
fn dual_clip_the_estimators_and_the_entropy_bonus_are_those_of_verl() {
    let vectors = reference("grpo.safetensors");
    for temperature in ["1.0", "0.7"] {
        let mut examples = rollouts(&vectors, temperature);
        for (name, aggregation) in
            [("token-mean", Aggregation::TokenMean), ("seq-mean-token-mean", Aggregation::SequenceMean)]
        {
            let objective = loss(|loss| {
                *loss = PolicyLoss { clip_high: 0.28, dual_clip: Some(1.3), aggregation, ..*loss };
            });
            assert_is(&vectors, &format!("{temperature}/verl/{name}"), &examples, &objective);
        }
        // Without advantages, the divergence alone is left.
        for sampled in examples.iter_mut().filter_map(|example| example.sampled.as_mut()) {
            sampled.advantages.fill(0.0);
        }
        for (name, estimator) in [("k1", Estimator::K1), ("k2", Estimator::K2), ("k3", Estimator::K3)] {
            let objective = loss(|loss| loss.kl = Some(Kl { coefficient: 1.0, estimator, importance_weighted: false }));
            assert_is(&vectors, &format!("{temperature}/{name}_alone"), &examples, &objective);
        }
        for (name, aggregation) in
            [("token-mean", Aggregation::TokenMean), ("seq-mean-token-mean", Aggregation::SequenceMean)]
        {
            let objective = loss(|loss| (loss.aggregation, loss.entropy) = (aggregation, Some(0.4)));
            assert_is(&vectors, &format!("{temperature}/bonus/{name}"), &examples, &objective);
        }
    }
}

/// With one token that is sampled, and that token clipped, or with other observations, no weight has a gradient from it.
#[test]
fn observations_and_clipped_tokens_have_no_gradient() {
    let vectors = reference("grpo.safetensors");
    let mut examples = rollouts(&vectors, "1.0");
    examples.truncate(1);
    let student = student();
    let now = step::evaluate(&student, &[0], &examples, &Sft::default(), 100).unwrap().log_probabilities.remove(&0);
    let places: Vec<usize> = (1..examples[0].tokens.len()).filter(|at| examples[0].learnt[*at]).collect();
    let (objective, before) = (loss(|_| ()), examples[0].clone());
    // The probability of each token rose far above that of its sampling: with a positive advantage, all are clipped.
    let sampled = examples[0].sampled.as_mut().unwrap();
    for (at, now) in places.iter().zip(now.unwrap()) {
        sampled.log_probabilities[*at] = now - 1.0;
    }
    sampled.advantages.fill(2.0);
    let (outcome, gradients) = learn(&examples, &objective);
    let all_zero = |gradients: &Gradients| gradients.values().flat_map(numbers).all(|number| number == 0.0);
    assert!(all_zero(&gradients), "exactly");
    assert!((outcome.loss + 2.0 * 1.2).abs() < 1e-5, "{}", outcome.loss);
    // Nothing is learnt from tokens that were not sampled, whatever stands at their places.
    let mut other = before.clone();
    let sampled = other.sampled.as_mut().unwrap();
    for at in (0..other.tokens.len()).filter(|at| !other.learnt[*at]) {
        (sampled.log_probabilities[at], sampled.advantages[at]) = (-7.0, 100.0);
    }
    let (one, same) = (learn(&[before], &objective).1, learn(&[other.clone()], &objective).1);
    assert!(!all_zero(&one));
    for (name, gradient) in &one {
        assert_eq!(numbers(gradient), numbers(&same[name]), "{name}");
    }
    other.learnt.fill(false);
    assert!(all_zero(&learn(&[other], &objective).1), "nothing was sampled");
}

#[test]
fn twenty_steps_on_fixed_samples_are_those_of_trl() {
    let vectors = reference("grpo.safetensors");
    let examples = rollouts(&vectors, "1.0");
    let student = student();
    let objective = loss(|loss| loss.clip_high = 0.28);
    let mut adam = AdamW::new(AdamParams::default());
    let (mut losses, mut entropies) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let batch: Vec<usize> = (0..4).map(|place| (number * 4 + place) % examples.len()).collect();
        let settings = Settings { objective: &objective, pass_tokens: 50, checkpointing: false, dropout: None };
        let mut gradients = Gradients::new();
        let outcome = step::learn(&student, &batch, &examples, settings, &mut gradients).unwrap();
        let clip = (1.0 / (norm(&gradients).unwrap() + 1e-6)).min(1.0);
        adam.step(&student.weights, &gradients, 5e-5, clip).unwrap();
        losses.push(outcome.loss);
        entropies.push(outcome.entropy.unwrap());
    }
    for (name, found) in [("losses", &losses), ("entropies", &entropies)] {
        let wanted = numbers(&vectors[&format!("steps/{name}")]);
        let apart = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-3, "{name}: {apart:.1e}\n{found:.4?}\n{wanted:.4?}");
    }
    let all: Vec<usize> = (0..examples.len()).collect();
    let found = step::evaluate(&student, &all, &examples, &Sft::default(), 100).unwrap().log_probabilities;
    for (number, wanted) in cut(&examples, &vectors["steps/log_probabilities"]).iter().enumerate() {
        let wanted = wanted.iter().enumerate().filter(|(at, _)| *at > 0 && examples[number].learnt[*at]);
        for ((_, wanted), found) in wanted.zip(&found[&number]) {
            assert!((wanted - found).abs() < 2e-3 * wanted.abs().max(1.0), "sequence {number}: {found} {wanted}");
        }
    }
    assert!(losses[18] < losses[0] - 0.05, "it learns from the same sequences: {losses:?}");
}

#[test]
fn preferences_are_those_of_trl() {
    let vectors = reference("dpo.safetensors");
    let mut examples = examples(&vectors);
    let reference = cut(&examples, &vectors["reference"]);
    for (number, example) in examples.iter_mut().enumerate() {
        let reference = reference[number].iter().map(|number| f64::from(*number)).sum();
        example.paired = Some(Paired { pair: number % 4, chosen: number < 4, reference });
    }
    let of = |beta, kind, label_smoothing, sft_weight| Preference {
        settings: PreferenceLoss { beta, kind, label_smoothing, sft_weight },
    };
    let dpo = PreferenceKind::Sigmoid;
    for (name, objective) in [
        ("sigmoid", of(0.1, dpo, 0.0, 0.0)),
        ("strong", of(0.8, dpo, 0.0, 0.0)),
        ("ipo", of(0.1, PreferenceKind::Ipo, 0.0, 0.0)),
        ("sft", of(0.1, dpo, 0.0, 0.5)),
    ] {
        assert_is(&vectors, name, &examples, &objective);
    }
    let one = [examples[0].clone(), examples[4].clone()];
    assert_is(&vectors, "smooth", &one, &of(0.8, dpo, 0.2, 0.0));
}
