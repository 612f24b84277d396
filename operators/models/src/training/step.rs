//! A step: passes over a batch of examples, and what they came to.

use std::collections::BTreeMap;

use candle_core::Result;
use searchmill_engine::operator::spread;

use super::batch::{Batch, PassOutcome};
use super::example::Example;
use super::objective::{Coupled, Objective, PairsOutcome};
use super::optimizer::Gradients;
use super::packing::pack;
use super::state::PreferenceStep;
use super::student::Student;
use super::{plain, tensors};
use crate::decoder::Dropout;

/// What the passes of a step share.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    pub objective: &'a dyn Objective,
    /// Limit of a pass in tokens, padding included. Bounds the memory.
    pub pass_tokens: usize,
    /// Hold the activations of one layer at a time and recompute them in the backward pass.
    pub checkpointing: bool,
    /// Decides which inputs of an adapter are dropped (`None`: none of them).
    pub dropout: Option<DropoutSeed>,
}

/// Seed of the dropout masks of a step.
#[derive(Clone, Copy, Debug)]
pub struct DropoutSeed {
    pub seed: u64,
    pub step: u64,
}

impl DropoutSeed {
    /// Returns the masks of one pass.
    fn of(self, pass: usize) -> Dropout {
        Dropout { seed: spread(self.seed ^ ((self.step << 16) | pass as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
    }
}

/// What a step came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub loss: f64,
    /// Share of the predicted tokens, by weight, that had the highest logit.
    pub accuracy: f64,
    /// Mean entropy of the predicted tokens in nats, if the objective needs it.
    pub entropy: Option<f64>,
    /// Figures of preference training.
    pub preference: Option<PreferenceStep>,
    /// Log-probabilities of the predicted tokens of each example, before the weights are updated. The key is the
    /// number of the example; the tokens are in their order.
    pub log_probabilities: BTreeMap<usize, Vec<f32>>,
}

/// Computes the loss of the examples numbered in `batch` and adds its gradients to `gradients`.
pub fn learn(
    student: &Student,
    batch: &[usize],
    examples: &[Example],
    settings: Settings<'_>,
    gradients: &mut Gradients,
) -> Result<Outcome> {
    let mut coupled = None;
    if let Some(coupling) = settings.objective.coupling() {
        // The losses depend on whole examples: they are read once without gradients, for the objective of this step.
        let outcome = read(student, batch, examples, settings)?;
        coupled = Some(coupling.of_step(examples, &outcome.log_probabilities));
    }
    let objective = coupled.as_ref().map_or(settings.objective, |coupled| &*coupled.objective);
    let outcome = over_passes(batch, examples, Settings { objective, ..settings }, |batch| {
        pass(student, batch, settings.checkpointing, gradients)
    })?;
    Ok(with_pairs(outcome, coupled.and_then(|coupled| coupled.of_pairs)))
}

/// Returns the outcome with the loss and the figures of its pairs, if it has any.
fn with_pairs(outcome: Outcome, of_pairs: Option<PairsOutcome>) -> Outcome {
    match of_pairs {
        Some(PairsOutcome { loss, figures }) => Outcome { loss, preference: Some(figures), ..outcome },
        None => outcome,
    }
}

/// Computes the loss of the examples numbered in `batch`, without gradients.
pub fn evaluate(
    student: &Student,
    batch: &[usize],
    examples: &[Example],
    objective: &dyn Objective,
    pass_tokens: usize,
) -> Result<Outcome> {
    let settings = Settings { objective, pass_tokens, checkpointing: false, dropout: None };
    let outcome = read(student, batch, examples, settings)?;
    let Some(coupling) = objective.coupling() else { return Ok(outcome) };
    match coupling.of_step(examples, &outcome.log_probabilities) {
        Coupled { of_pairs: Some(pairs), .. } => Ok(with_pairs(outcome, Some(pairs))),
        Coupled { objective, of_pairs: None } => {
            read(student, batch, examples, Settings { objective: &*objective, ..settings })
        }
    }
}

/// Runs the forward passes of a step.
fn read(student: &Student, batch: &[usize], examples: &[Example], settings: Settings<'_>) -> Result<Outcome> {
    let evaluate = if student.compute.is_plain() { plain::evaluate } else { tensors::evaluate };
    over_passes(batch, examples, settings, |batch| evaluate(student, batch))
}

/// Runs one forward and backward pass and adds its gradients to `gradients`.
pub fn pass(
    student: &Student,
    batch: &Batch<'_>,
    checkpointing: bool,
    gradients: &mut Gradients,
) -> Result<PassOutcome> {
    let run = if student.compute.is_plain() { plain::pass } else { tensors::pass };
    run(student, batch, checkpointing, gradients)
}

fn over_passes(
    batch: &[usize],
    examples: &[Example],
    settings: Settings<'_>,
    mut run: impl FnMut(&Batch<'_>) -> Result<PassOutcome>,
) -> Result<Outcome> {
    let lengths: Vec<_> = batch.iter().map(|example| (*example, examples[*example].tokens.len())).collect();
    let divisor = batch.iter().map(|example| settings.objective.divisor(&examples[*example])).sum::<f64>().max(1e-9);
    let (mut outcome, mut entropy, mut targets) = (Outcome::default(), 0.0, 0_usize);
    for (number, pass) in pack(&lengths, settings.pass_tokens).iter().enumerate() {
        let mut batch = Batch::new(pass, examples, settings.objective);
        // Gradients are divided in each pass, losses at the end: the passes add up to one step.
        batch.scale = 1.0 / divisor;
        batch.layout.dropout = settings.dropout.map(|seed| seed.of(number));
        let one = run(&batch)?;
        outcome.loss += one.loss;
        outcome.accuracy += one.right;
        entropy += one.entropy;
        targets += one.log_probabilities.len();
        outcome.log_probabilities.append(&mut one.by_example(&batch));
    }
    outcome.loss /= divisor;
    outcome.accuracy /= divisor;
    outcome.entropy = settings.objective.needs_entropy().then(|| entropy / targets.max(1) as f64);
    Ok(outcome)
}
