//! The state of a training between two steps as one `.safetensors` file: trained weights, the optimiser's means, the best
//! weights so far, and the metrics. A training resumed from it gives the same bits.

use std::collections::{BTreeMap, HashMap};

use candle_core::safetensors::SliceSafetensors;
use candle_core::{Device, Tensor, Var, WithDType};
use safetensors::SafeTensors;
use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};

use super::optimizer::{AdamW, Moments};
use crate::decoder::failed;

/// Metrics of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the step, from 1.
    pub step: u64,
    /// Passes over the examples so far; may be fractional.
    pub epoch: f64,
    /// Mean loss of the batch by weight.
    pub loss: f64,
    pub learning_rate: f64,
    /// Global norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Tokens read.
    pub tokens: u64,
    /// Tokens learnt.
    pub targets: u64,
    /// Share of the learnt tokens, by weight, to which the model gives the highest probability.
    pub token_accuracy: f64,
    /// Loss on the held-out examples, if evaluated after this step.
    pub eval_loss: Option<f64>,
    pub eval_token_accuracy: Option<f64>,
    /// Figures of reinforcement learning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyStep>,
    /// Figures of preference training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<PreferenceStep>,
}

/// Figures of a step of reinforcement learning: means over the tokens that the model wrote, before the weights change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyStep {
    /// Ratio of the probability now and when the token was sampled.
    pub ratio: f64,
    /// Divergence from the policy that sampled (k3).
    pub kl: f64,
    /// Share of tokens whose loss is clipped.
    pub clipped: f64,
    /// Divergence from the reference model (k3).
    pub reference_kl: Option<f64>,
    /// The largest difference of a log-probability now and when the token was sampled.
    pub gap: f64,
    /// Entropy over the vocabulary in nats.
    pub entropy: Option<f64>,
}

impl PolicyStep {
    /// Names of the figures in the table of steps.
    pub const NAMES: [&str; 6] = ["ratio", "kl", "clip_share", "reference_kl", "logprob_gap", "entropy"];

    /// Returns the figures with their names in the table of steps.
    pub fn named(&self) -> [(&'static str, Option<f64>); 6] {
        let [ratio, kl, clip_share, reference_kl, logprob_gap, entropy] = Self::NAMES;
        [
            (ratio, Some(self.ratio)),
            (kl, Some(self.kl)),
            (clip_share, Some(self.clipped)),
            (reference_kl, self.reference_kl),
            (logprob_gap, Some(self.gap)),
            (entropy, self.entropy),
        ]
    }
}

/// Figures of a step of preference training: means over its pairs, before the weights change. The reward of a rollout is
/// `beta` times the logarithm of its probability over that under the reference model (arXiv:2305.18290, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreferenceStep {
    /// Reward of the better rollouts.
    pub chosen: f64,
    /// Reward of the worse rollouts.
    pub rejected: f64,
    /// Share of the pairs whose better rollout has the higher reward.
    pub accuracy: f64,
}

impl PreferenceStep {
    /// Names of the figures in the table of steps.
    pub const NAMES: [&str; 4] = ["chosen_reward", "rejected_reward", "reward_margin", "reward_accuracy"];

    /// Returns the figures with their names in the table of steps.
    pub fn named(&self) -> [(&'static str, f64); 4] {
        let [chosen, rejected, margin, accuracy] = Self::NAMES;
        [
            (chosen, self.chosen),
            (rejected, self.rejected),
            (margin, self.chosen - self.rejected),
            (accuracy, self.accuracy),
        ]
    }
}

/// The best weights so far, by loss on the held-out examples.
#[derive(Clone, Debug)]
pub struct Best {
    pub loss: f64,
    pub step: u64,
    pub weights: BTreeMap<String, Vec<f32>>,
}

/// Progress of a training.
#[derive(Debug, Default)]
pub struct Progressed {
    pub steps: Vec<Step>,
    pub best: Option<Best>,
    /// Evaluations since the best one.
    pub stale: u32,
    /// Whether the training stopped early.
    pub stopped: bool,
    /// The weights after some of the steps.
    pub checkpoints: BTreeMap<u64, BTreeMap<String, Vec<f32>>>,
}

/// The part of the state that is not a tensor. Integers only, because text does not keep every bit of a float.
#[derive(Serialize, Deserialize)]
struct Head {
    /// Numbers per step. Those of a state that another version saved cannot be read.
    #[serde(default)]
    figures: usize,
    best_step: Option<u64>,
    stale: u32,
    stopped: bool,
    taken: u64,
}

/// Count of the fields of a step, stored in order; NaN if not measured.
const FIGURES: usize = 19;

impl Step {
    fn figures(&self) -> [f64; FIGURES] {
        let (mut policy, mut preference) = ([f64::NAN; 6], [f64::NAN; 3]);
        if let Some(step) = &self.policy {
            policy = step.named().map(|(_, figure)| figure.unwrap_or(f64::NAN));
        }
        // Not by name: the margin is computed from the others.
        if let Some(pairs) = &self.preference {
            preference = [pairs.chosen, pairs.rejected, pairs.accuracy];
        }
        [
            self.step as f64,
            self.epoch,
            self.loss,
            self.learning_rate,
            self.grad_norm,
            self.tokens as f64,
            self.targets as f64,
            self.token_accuracy,
            self.eval_loss.unwrap_or(f64::NAN),
            self.eval_token_accuracy.unwrap_or(f64::NAN),
            policy[0],
            policy[1],
            policy[2],
            policy[3],
            policy[4],
            policy[5],
            preference[0],
            preference[1],
            preference[2],
        ]
    }

    fn of(figures: &[f64; FIGURES]) -> Self {
        Self {
            step: figures[0] as u64,
            epoch: figures[1],
            loss: figures[2],
            learning_rate: figures[3],
            grad_norm: figures[4],
            tokens: figures[5] as u64,
            targets: figures[6] as u64,
            token_accuracy: figures[7],
            eval_loss: measured(figures[8]),
            eval_token_accuracy: measured(figures[9]),
            policy: measured(figures[10]).map(|ratio| PolicyStep {
                ratio,
                kl: figures[11],
                clipped: figures[12],
                reference_kl: measured(figures[13]),
                gap: figures[14],
                entropy: measured(figures[15]),
            }),
            preference: measured(figures[16]).map(|chosen| PreferenceStep {
                chosen,
                rejected: figures[17],
                accuracy: figures[18],
            }),
        }
    }
}

fn measured(figure: f64) -> Option<f64> {
    if figure.is_nan() { None } else { Some(figure) }
}

fn unwritable(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::engine(format!("cannot write the state of the training: {error}"))
}

/// Serialises the state.
pub fn save(weights: &BTreeMap<String, Var>, adam: &AdamW, progressed: &Progressed) -> Result<Vec<u8>, OperatorError> {
    let mut figures: Vec<f64> = progressed.steps.iter().flat_map(Step::figures).collect();
    // Behind those of the steps: the loss of the best weights. As a tensor it keeps every bit.
    figures.extend(progressed.best.as_ref().map(|best| best.loss));
    let head = Head {
        figures: FIGURES,
        best_step: progressed.best.as_ref().map(|best| best.step),
        stale: progressed.stale,
        stopped: progressed.stopped,
        taken: adam.steps,
    };
    let head = serde_json::to_string(&head).map_err(unwritable)?;
    let mut parts = moments(adam)?;
    parts.insert("figures".to_owned(), tensor(figures)?);
    for (name, numbers) in copied(weights)? {
        parts.insert(format!("weight/{name}"), tensor(numbers)?);
    }
    if let Some(best) = &progressed.best {
        for (name, numbers) in &best.weights {
            parts.insert(format!("best/{name}"), tensor(numbers.clone())?);
        }
    }
    for (step, weights) in &progressed.checkpoints {
        for (name, numbers) in weights {
            parts.insert(format!("checkpoint/{step}/{name}"), tensor(numbers.clone())?);
        }
    }
    safetensors::serialize(parts, Some(HashMap::from([("head".to_owned(), head)]))).map_err(unwritable)
}

/// Serialises the optimiser alone, for a training that goes on from the weights.
pub fn save_optimizer(adam: &AdamW) -> Result<Vec<u8>, OperatorError> {
    let head = HashMap::from([("steps".to_owned(), adam.steps.to_string())]);
    safetensors::serialize(moments(adam)?, Some(head)).map_err(unwritable)
}

/// Returns the optimiser's means as tensors by name.
fn moments(adam: &AdamW) -> Result<BTreeMap<String, Tensor>, OperatorError> {
    let mut parts = BTreeMap::new();
    for (name, moments) in adam.moments().map_err(unwritable)? {
        parts.insert(format!("mean/{name}"), tensor(moments.mean)?);
        parts.insert(format!("square/{name}"), tensor(moments.square)?);
    }
    Ok(parts)
}

/// Restores a saved optimiser.
///
/// # Errors
/// If it is not one of these weights.
pub fn restore_optimizer(state: &[u8], weights: &BTreeMap<String, Var>, adam: &mut AdamW) -> Result<(), OperatorError> {
    let (Ok((_, metadata)), Ok(tensors)) = (SafeTensors::read_metadata(state), SliceSafetensors::new(state)) else {
        return Err(other_optimizer("cannot be read"));
    };
    for (name, var) in weights {
        let (mean, square) = (part(&tensors, "mean", name, var), part(&tensors, "square", name, var));
        let (Some(mean), Some(square)) = (mean, square) else {
            return Err(other_optimizer(&format!("has no `{name}` of this shape")));
        };
        adam.restore(var, name.clone(), Moments { mean, square }).map_err(failed)?;
    }
    let steps = metadata.metadata().as_ref().and_then(|head| head.get("steps")?.parse().ok());
    let Some(steps) = steps else { return Err(other_optimizer("cannot be read")) };
    adam.steps = steps;
    Ok(())
}

fn other_optimizer(what: &str) -> OperatorError {
    OperatorError::data(format!("the optimiser's state {what}"))
        .with_help("connect the output `state` of the training whose `model` is trained on")
}

/// Returns the saved numbers of a weight, if there are as many as it has.
fn part(tensors: &SliceSafetensors<'_>, kind: &str, name: &str, var: &Var) -> Option<Vec<f32>> {
    let numbers = tensors.load(&format!("{kind}/{name}"), &Device::Cpu).ok()?.to_vec1::<f32>().ok()?;
    if numbers.len() == var.elem_count() { Some(numbers) } else { None }
}

fn tensor<T: WithDType>(numbers: Vec<T>) -> Result<Tensor, OperatorError> {
    let count = numbers.len();
    Tensor::from_vec(numbers, count, &Device::Cpu).map_err(unwritable)
}

/// Restores a saved state into the weights and the optimiser, with the weights after the steps `checkpoints` that it has
/// behind it. Returns `None` if the state does not fit these weights.
pub fn restore(
    state: &[u8],
    weights: &BTreeMap<String, Var>,
    checkpoints: &[u64],
    adam: &mut AdamW,
) -> Result<Option<Progressed>, OperatorError> {
    let Ok((_, metadata)) = SafeTensors::read_metadata(state) else { return Ok(None) };
    let head = metadata.metadata().as_ref().and_then(|metadata| metadata.get("head"));
    let Some(Ok(head)) = head.map(|head| serde_json::from_str::<Head>(head)) else { return Ok(None) };
    // Of another version: the training starts over.
    if head.figures != FIGURES {
        return Ok(None);
    }
    let Ok(tensors) = SliceSafetensors::new(state) else { return Ok(None) };
    let figures = tensors.load("figures", &Device::Cpu).and_then(|figures| figures.to_vec1::<f64>());
    let Ok(figures) = figures else { return Ok(None) };
    // All parts are read before a weight is set: a state that does not fit changes nothing.
    let mut saved = BTreeMap::new();
    let mut best = BTreeMap::new();
    for (name, var) in weights {
        let (mean, square) = (part(&tensors, "mean", name, var), part(&tensors, "square", name, var));
        let (Some(mean), Some(square), Some(weight)) = (mean, square, part(&tensors, "weight", name, var)) else {
            return Ok(None);
        };
        saved.insert(name.clone(), (weight, Moments { mean, square }));
        // Only there if the best weights are kept.
        best.extend(part(&tensors, "best", name, var).map(|numbers| (name.clone(), numbers)));
    }
    let (steps, rest) = figures.as_chunks::<FIGURES>();
    let mut copies = BTreeMap::new();
    // Only those that this training asks for and has behind it: the list is a param that may have changed.
    for step in checkpoints.iter().filter(|step| **step <= steps.len() as u64) {
        let mut copy = BTreeMap::new();
        for (name, var) in weights {
            let numbers = part(&tensors, &format!("checkpoint/{step}"), name, var);
            let Some(numbers) = numbers else { return Ok(None) };
            copy.insert(name.clone(), numbers);
        }
        copies.insert(*step, copy);
    }
    for (name, (weight, moments)) in saved {
        set(&weights[&name], weight)?;
        adam.restore(&weights[&name], name, moments).map_err(failed)?;
    }
    // The optimiser may have taken steps before this training.
    adam.steps = head.taken;
    // The loss is there if there is a best step.
    let best = head.best_step.zip(rest.first()).map(|(step, loss)| Best { loss: *loss, step, weights: best });
    let steps = steps.iter().map(Step::of).collect();
    Ok(Some(Progressed { steps, best, stale: head.stale, stopped: head.stopped, checkpoints: copies }))
}

/// Sets the numbers of a weight.
pub fn set(var: &Var, numbers: Vec<f32>) -> Result<(), OperatorError> {
    let tensor = Tensor::from_vec(numbers, var.shape(), var.device());
    tensor.and_then(|tensor| var.set(&tensor)).map_err(failed)
}

/// Sets the numbers of these weights.
pub fn set_all(weights: &BTreeMap<String, Var>, numbers: &BTreeMap<String, Vec<f32>>) -> Result<(), OperatorError> {
    for (name, numbers) in numbers {
        set(&weights[name], numbers.clone())?;
    }
    Ok(())
}

/// Copies all weights.
pub fn copied(weights: &BTreeMap<String, Var>) -> Result<BTreeMap<String, Vec<f32>>, OperatorError> {
    let mut copies = BTreeMap::new();
    for (name, var) in weights {
        let numbers = var.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).map_err(failed)?;
        copies.insert(name.clone(), numbers);
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::optimizer::AdamParams;
    use super::*;

    fn var(numbers: &[f32]) -> Var {
        Var::from_tensor(&Tensor::new(numbers, &Device::Cpu).unwrap()).unwrap()
    }

    #[test]
    fn a_state_comes_back_to_the_bit_or_not_at_all() {
        let weights = BTreeMap::from([("w".to_owned(), var(&[0.1, -7e-9]))]);
        let mut adam = AdamW::new(AdamParams::default());
        let gradients = BTreeMap::from([("w".to_owned(), Tensor::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap())]);
        adam.step(&weights, &gradients, 0.1, 1.0).unwrap();
        let best = Some(Best { loss: 0.1 + 0.2, step: 1, weights: copied(&weights).unwrap() });
        let none = f64::NAN;
        let taken = [1.0, 0.1, 5.114_935_589_932_743_6, 1e-3, 3.7, 9.0, 4.0, 0.5, none, none];
        let (policy, preference) = ([1.1, 0.2, 0.3, none, 0.4, 2.5], [0.3, -0.2, 0.75]);
        let step: Vec<f64> = taken.into_iter().chain(policy).chain(preference).collect();
        let step = Step::of(step.as_array().unwrap());
        assert_eq!(
            step.policy.map(|policy| (policy.reference_kl, policy.gap, policy.entropy)),
            Some((None, 0.4, Some(2.5)))
        );
        assert_eq!(step.preference.map(|pairs| pairs.named()[2]), Some(("reward_margin", 0.5)));
        let copies = BTreeMap::from([(1, copied(&weights).unwrap())]);
        let progressed =
            Progressed { steps: vec![step], best, stale: 2, checkpoints: copies.clone(), ..Progressed::default() };
        let saved = save(&weights, &adam, &progressed).unwrap();
        let (fresh, mut other) =
            (BTreeMap::from([("w".to_owned(), var(&[0.0, 0.0]))]), AdamW::new(AdamParams::default()));
        let back = restore(&saved, &fresh, &[1, 5], &mut other).unwrap().expect("a state");
        assert_eq!(copied(&fresh).unwrap(), copied(&weights).unwrap());
        assert_eq!((other.steps, other.moments().unwrap()), (1, adam.moments().unwrap()));
        assert_eq!((&back.steps, &back.checkpoints), (&progressed.steps, &copies));
        let without = save(&weights, &adam, &Progressed { checkpoints: BTreeMap::new(), ..progressed }).unwrap();
        assert!(restore(&without, &fresh, &[1], &mut other).unwrap().is_none(), "a checkpoint is missing");
        let best = back.best.expect("a best");
        assert_eq!((best.loss, back.stale, best.weights), (0.1 + 0.2, 2, copied(&weights).unwrap()));
        let strange = BTreeMap::from([("w".to_owned(), var(&[0.0]))]);
        assert!(restore(&saved, &strange, &[], &mut other).unwrap().is_none(), "of another shape");
        assert!(restore(&saved[..saved.len() / 2], &fresh, &[], &mut other).unwrap().is_none(), "torn");
        assert!(restore(b"", &fresh, &[], &mut other).unwrap().is_none());
        let other_version = SafeTensors::read_metadata(&saved).unwrap().1;
        let head = other_version.metadata().as_ref().unwrap()["head"].replace(&format!("\"figures\":{FIGURES},"), "");
        let part = BTreeMap::from([("figures".to_owned(), tensor(vec![0.0_f64; 15]).unwrap())]);
        let old = safetensors::serialize(part, Some(HashMap::from([("head".to_owned(), head)]))).unwrap();
        assert!(restore(&old, &BTreeMap::new(), &[], &mut other).unwrap().is_none(), "of a version with other figures");
        let (alone, mut next) = (save_optimizer(&adam).unwrap(), AdamW::new(AdamParams::default()));
        restore_optimizer(&alone, &fresh, &mut next).unwrap();
        assert_eq!((next.steps, next.moments().unwrap()), (1, adam.moments().unwrap()));
        let error = restore_optimizer(&alone, &strange, &mut next).unwrap_err();
        assert!(error.message.contains("has no `w` of this shape"), "{}", error.message);
        assert!(restore_optimizer(b"torn", &fresh, &mut next).is_err());
    }
}
