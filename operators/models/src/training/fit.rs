//! The training loop: steps, checkpoints, evaluation on held-out examples, early stopping.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError};
use serde::{Deserialize, Serialize};

use super::example::Example;
use super::learning_rate::{Decay, Rate};
use super::objective::{Objective, Observed};
use super::optimizer::{AdamParams, AdamW, Gradients, norm};
use super::packing::Order;
use super::state::{self, Best, PolicyStep, Progressed, Step};
use super::step::{self, DropoutSeed, Outcome};
use super::student::Student;
use crate::decoder::failed;

/// Steps logged per training, apart from those with an evaluation.
const LINES: u64 = 60;

/// Which checkpoint to output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The weights after the last step.
    #[default]
    Last,
    /// The weights with the lowest loss on the held-out examples.
    Best,
}

/// Settings of a training.
#[derive(Clone, Debug)]
pub struct FitSettings {
    /// Passes over the examples; the last one may be partial.
    pub epochs: f64,
    /// Limit of the number of steps.
    pub max_steps: Option<u64>,
    /// Units per step.
    pub batch_size: usize,
    /// Limit of a forward and backward pass in tokens, padding included.
    pub pass_tokens: usize,
    /// Hold the activations of one layer at a time and recompute them in the backward pass.
    pub checkpointing: bool,
    /// Peak of the learning rate.
    pub learning_rate: f64,
    pub decay: Decay,
    /// Share of the steps in which the learning rate rises from 0.
    pub warmup_ratio: f64,
    /// Steps that the learning rate spans, those of the optimiser's state included, instead of the steps of this training.
    pub schedule_steps: Option<u64>,
    pub optimizer: AdamParams,
    /// Limit of the norm of the gradients; larger ones are scaled down.
    pub max_grad_norm: Option<f64>,
    /// Steps between evaluations; the last step is always evaluated.
    pub eval_steps: u64,
    /// Stop after this many evaluations without a lower loss.
    pub early_stopping: Option<u32>,
    pub keep: Keep,
    /// Steps after which the weights are copied, in order.
    pub checkpoints: Vec<u64>,
    /// Steps between saved states.
    pub save_steps: u64,
}

/// A training: a student, its examples and what it minimises.
pub struct Fit<'a> {
    pub settings: FitSettings,
    pub objective: &'a dyn Objective,
    /// Measures the loss on the held-out examples.
    pub evaluation: &'a dyn Objective,
    pub student: &'a Student,
    pub examples: &'a [Example],
    /// Numbers of the examples that are in a step together: an example alone, or the sequences of a pair.
    pub units: &'a [Range<usize>],
    pub held_out: &'a [Example],
    /// State of the optimiser to start from, as [`Fitted::optimizer`].
    pub optimizer: Option<&'a [u8]>,
    pub context: &'a Context,
}

/// Outcome of a training; the trained weights are in the student.
pub struct Fitted {
    pub progressed: Progressed,
    /// The optimiser after the last step.
    pub optimizer: AdamW,
    /// The step whose weights were kept.
    pub kept: u64,
    /// Tokens read by this process, and the time that took. Differs between runs.
    pub tokens: u64,
    pub time: Duration,
}

impl Fit<'_> {
    fn order(&self) -> Order {
        Order { examples: self.units.len(), batch: self.settings.batch_size, seed: self.context.seed() }
    }

    /// Returns the numbers of the examples of a step; steps count from 0.
    pub fn batch(&self, step: u64) -> Vec<usize> {
        self.order().batch(step).into_iter().flat_map(|unit| self.units[unit].clone()).collect()
    }

    /// Returns the number of steps of the whole training.
    fn total(&self) -> u64 {
        let all = (self.settings.epochs * self.order().steps_per_epoch() as f64).ceil() as u64;
        self.settings.max_steps.map_or(all, |most| all.min(most)).max(1)
    }

    fn rate(&self) -> Rate {
        let total = self.settings.schedule_steps.unwrap_or_else(|| self.total());
        let warmup = (total as f64 * self.settings.warmup_ratio).ceil() as u64;
        Rate { peak: self.settings.learning_rate, warmup, total, decay: self.settings.decay }
    }

    /// Trains from the last checkpoint, or from the start.
    ///
    /// # Errors
    /// When the loss or the gradients are not finite, the device fails, or the run drains (after saving a checkpoint).
    pub fn run(&self) -> Result<Fitted, OperatorError> {
        let mut adam = AdamW::new(self.settings.optimizer);
        if let Some(state) = self.optimizer {
            state::restore_optimizer(state, &self.student.weights, &mut adam)?;
        }
        let mut progressed = self.resumed(&mut adam)?;
        let (total, rate, begun) = (self.total(), self.rate(), Instant::now());
        if let Some(late) = self.settings.checkpoints.iter().find(|step| **step > total) {
            let error = OperatorError::data(format!("there is no step {late}: the training has {total} steps"));
            return Err(error.with_help("leave it out of `checkpoints`, or train on more examples or for more epochs"));
        }
        // Only those of this process, as the time is.
        let mut tokens = 0;
        while (progressed.steps.len() as u64) < total && !progressed.stopped {
            // Between two steps: within one, the state would not be that of any step.
            if self.context.is_draining() {
                self.save(&adam, &progressed)?;
                return Err(OperatorError::cancelled());
            }
            let number = progressed.steps.len() as u64;
            let mut step = self.step(number, &rate, &mut adam)?;
            tokens += step.tokens;
            self.evaluate(&mut step, total, &mut progressed)?;
            self.log(&step, total, tokens, begun.elapsed());
            progressed.steps.push(step);
            if self.settings.checkpoints.contains(&(number + 1)) {
                progressed.checkpoints.insert(number + 1, state::copied(&self.student.weights)?);
            }
            // Not after the last step: the outputs are written at once.
            if (number + 1).is_multiple_of(self.settings.save_steps) && number + 1 < total {
                self.save(&adam, &progressed)?;
            }
        }
        let mut kept = progressed.steps.len() as u64;
        if let Some(best) = &progressed.best
            && self.settings.keep == Keep::Best
        {
            state::set_all(&self.student.weights, &best.weights)?;
            kept = best.step;
        }
        Ok(Fitted { progressed, optimizer: adam, kept, tokens, time: begun.elapsed() })
    }

    fn resumed(&self, adam: &mut AdamW) -> Result<Progressed, OperatorError> {
        let Some(saved) = self.context.checkpoint().load()? else { return Ok(Progressed::default()) };
        let restored = state::restore(&saved, &self.student.weights, &self.settings.checkpoints, adam)?;
        let progress = self.context.progress();
        match &restored {
            Some(progressed) => {
                progress.resumed(progressed.steps.len() as u64);
                progress.log(&format!("resumes after step {}", progressed.steps.len()));
            }
            None => progress.log("the checkpoint does not fit this training: starting over"),
        }
        Ok(restored.unwrap_or_default())
    }

    fn save(&self, adam: &AdamW, progressed: &Progressed) -> Result<(), OperatorError> {
        self.context.checkpoint().save(&state::save(&self.student.weights, adam, progressed)?)
    }

    fn step(&self, number: u64, rate: &Rate, adam: &mut AdamW) -> Result<Step, OperatorError> {
        let batch = self.batch(number);
        let mut gradients = Gradients::new();
        // Steps of the optimiser's state count, so that a training that goes on has the masks of the longer one.
        let outcome = self.learn(adam.steps, &batch, &mut gradients)?;
        let grad_norm = norm(&gradients).map_err(failed)?;
        if !outcome.loss.is_finite() || !grad_norm.is_finite() {
            return Err(self.diverged(number, outcome.loss, grad_norm, &batch));
        }
        // 1e-6 as in `torch.nn.utils.clip_grad_norm_`.
        let clip = self.settings.max_grad_norm.map_or(1.0, |most| (most / (grad_norm + 1e-6)).min(1.0));
        let learning_rate = rate.at(self.settings.schedule_steps.map_or(number, |_| adam.steps));
        adam.step(&self.student.weights, &gradients, learning_rate, clip).map_err(failed)?;
        let policy = self.observed(&outcome);
        Ok(Step {
            step: number + 1,
            epoch: (number + 1) as f64 / self.order().steps_per_epoch() as f64,
            loss: outcome.loss,
            learning_rate,
            grad_norm,
            tokens: batch.iter().map(|example| self.examples[*example].tokens.len() as u64).sum(),
            targets: batch.iter().map(|example| self.examples[*example].targets() as u64).sum(),
            // Reinforcement learning and preferences do not weigh tokens by shares.
            token_accuracy: if policy.is_some() || outcome.preference.is_some() { f64::NAN } else { outcome.accuracy },
            eval_loss: None,
            eval_token_accuracy: None,
            policy,
            preference: outcome.preference,
        })
    }

    /// Returns the figures of a step of reinforcement learning.
    fn observed(&self, outcome: &Outcome) -> Option<PolicyStep> {
        let mut all: Option<Observed> = None;
        for (example, numbers) in &outcome.log_probabilities {
            if let Some(observed) = self.objective.observe(&self.examples[*example], numbers) {
                all = Some(all.map_or(observed, |sum| sum + observed));
            }
        }
        let all = all?;
        Some(PolicyStep {
            ratio: all.ratio / all.tokens,
            kl: all.kl / all.tokens,
            clipped: all.clipped / all.tokens,
            reference_kl: all.reference_kl.map(|sum| sum / all.tokens),
            gap: all.gap,
            entropy: outcome.entropy,
        })
    }

    fn learn(&self, number: u64, batch: &[usize], gradients: &mut Gradients) -> Result<Outcome, OperatorError> {
        let settings = step::Settings {
            objective: self.objective,
            pass_tokens: self.settings.pass_tokens,
            checkpointing: self.settings.checkpointing,
            dropout: Some(DropoutSeed { seed: self.context.seed(), step: number }),
        };
        step::learn(self.student, batch, self.examples, settings, gradients).map_err(failed)
    }

    fn diverged(&self, number: u64, loss: f64, grad_norm: f64, batch: &[usize]) -> OperatorError {
        let ids: Vec<&str> = batch.iter().take(4).map(|example| self.examples[*example].id.as_str()).collect();
        let message = format!(
            "step {}: the loss is {loss} and the gradient norm {grad_norm} (examples {}, …)",
            number + 1,
            ids.join(", ")
        );
        OperatorError::data(message).with_help(
            "lower `learning_rate` or set `max_grad_norm`; NaN at the first step means that the model's weights hold NaN",
        )
    }

    /// Evaluates on the held-out examples if this step is due.
    fn evaluate(&self, step: &mut Step, total: u64, progressed: &mut Progressed) -> Result<(), OperatorError> {
        let due = step.step.is_multiple_of(self.settings.eval_steps) || step.step == total;
        if !due || self.held_out.is_empty() {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.held_out.len()).collect();
        let pass_tokens = self.settings.pass_tokens;
        let outcome =
            step::evaluate(self.student, &all, self.held_out, self.evaluation, pass_tokens).map_err(failed)?;
        // Of pairs, the share of tokens that the model would have written says nothing.
        step.eval_loss = Some(outcome.loss);
        step.eval_token_accuracy = outcome.preference.is_none().then_some(outcome.accuracy);
        if progressed.best.as_ref().is_none_or(|best| outcome.loss < best.loss) {
            progressed.stale = 0;
            // A copy takes the memory of the model once more.
            let needed = self.settings.keep == Keep::Best;
            let weights = if needed { state::copied(&self.student.weights)? } else { BTreeMap::new() };
            progressed.best = Some(Best { loss: outcome.loss, step: step.step, weights });
        } else {
            progressed.stale += 1;
            progressed.stopped = self.settings.early_stopping.is_some_and(|patience| progressed.stale >= patience);
        }
        Ok(())
    }

    fn log(&self, step: &Step, total: u64, tokens: u64, time: Duration) {
        let progress = self.context.progress();
        progress.set(step.step, total, "steps");
        // The output table has all steps; a log of thousands of lines would hide everything else.
        if step.step != 1 && step.eval_loss.is_none() && !step.step.is_multiple_of(total.div_ceil(LINES).max(1)) {
            return;
        }
        let rate = tokens as f64 / time.as_secs_f64().max(1e-9);
        let mut line = format!(
            "step {}/{total} loss {:.4} lr {:.3e} grad_norm {:.3} tokens/s {rate:.0}",
            step.step, step.loss, step.learning_rate, step.grad_norm
        );
        if let Some(loss) = step.eval_loss {
            line += &format!(" eval_loss {loss:.4}");
        }
        if let Some(p) = step.policy {
            line += &format!(" kl {:.2e} clip_share {:.3} logprob_gap {:.1e}", p.kl, p.clipped, p.gap);
            if let Some(entropy) = p.entropy {
                line += &format!(" entropy {entropy:.3}");
            }
        }
        if let Some(p) = step.preference {
            line += &format!(" reward_margin {:.3} reward_accuracy {:.3}", p.chosen - p.rejected, p.accuracy);
        }
        progress.log(&line);
    }
}

/// Returns the units of examples that stand alone.
pub fn alone(count: usize) -> Vec<Range<usize>> {
    (0..count).map(|number| number..number + 1).collect()
}
