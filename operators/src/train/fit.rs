//! The training itself: step by step, with checkpoints, measurements on what is held out, and an early end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use searchmill_engine::operator::{Context, OperatorError};
use searchmill_models::decoder::Dropout;
use searchmill_models::training::example::Example;
use searchmill_models::training::gradient::{self, Outcome, Settings};
use searchmill_models::training::optimizer::{AdamW, Gradients, norm};
use searchmill_models::training::schedule::{Order, Rate, pack};
use searchmill_models::training::state::{self, Best, Progressed, Step};
use searchmill_models::training::student::{Student, failed};

use super::params::{Keep, TrainParams};

/// Steps that are told of in the log, but for those that were measured on what is held out.
const LINES: u64 = 60;

/// A training at work.
pub(super) struct Fit<'a> {
    pub(super) params: &'a TrainParams,
    pub(super) student: &'a mut Student,
    pub(super) examples: &'a [Example],
    pub(super) held_out: &'a [Example],
    pub(super) context: &'a Context,
}

/// What came of it, beside the weights.
pub(super) struct Fitted {
    pub(super) progressed: Progressed,
    /// The step whose weights were kept.
    pub(super) kept: u64,
    /// Tokens read by this process, and the time that took: not the same in every run.
    pub(super) tokens: u64,
    pub(super) time: Duration,
}

impl Fit<'_> {
    fn order(&self) -> Order {
        Order { examples: self.examples.len(), batch: self.params.batch_size, seed: self.context.seed() }
    }

    /// Steps of the whole training.
    pub(super) fn total(&self) -> u64 {
        let all = (self.params.epochs * self.order().steps_per_epoch() as f64).ceil() as u64;
        self.params.max_steps.map_or(all, |most| all.min(most)).max(1)
    }

    fn rate(&self) -> Rate {
        let total = self.total();
        let warmup = (total as f64 * self.params.warmup_ratio).ceil() as u64;
        Rate { peak: self.params.learning_rate, warmup, total, decay: self.params.schedule }
    }

    /// Trains from the last checkpoint, or from the start.
    pub(super) fn run(&mut self) -> Result<Fitted, OperatorError> {
        let mut adam = AdamW::new(self.params.optimizer);
        let mut progressed = self.resumed(&mut adam)?;
        let (total, rate, begun) = (self.total(), self.rate(), Instant::now());
        let mut tokens = 0;
        while (progressed.steps.len() as u64) < total && !progressed.stopped {
            if self.context.is_draining() {
                self.save(&adam, &progressed)?;
                return Err(OperatorError::cancelled());
            }
            let number = progressed.steps.len() as u64;
            let mut step = self.step(number, &rate, &mut adam)?;
            tokens += step.tokens;
            self.measure(&mut step, total, &mut progressed)?;
            self.tell(&step, total, tokens, begun.elapsed());
            progressed.steps.push(step);
            if (number + 1).is_multiple_of(self.params.save_steps) && number + 1 < total {
                self.save(&adam, &progressed)?;
            }
        }
        let kept = self.keep(&progressed)?;
        Ok(Fitted { progressed, kept, tokens, time: begun.elapsed() })
    }

    fn resumed(&self, adam: &mut AdamW) -> Result<Progressed, OperatorError> {
        let Some(saved) = self.context.checkpoint().load()? else { return Ok(Progressed::default()) };
        let restored = state::restore(&saved, &self.student.weights, adam)?;
        let progress = self.context.progress();
        match &restored {
            Some(progressed) => progress.log(&format!("goes on after step {}", progressed.steps.len())),
            None => progress.log("the last checkpoint is not of this training: it starts over"),
        }
        Ok(restored.unwrap_or_default())
    }

    fn save(&self, adam: &AdamW, progressed: &Progressed) -> Result<(), OperatorError> {
        self.context.checkpoint().save(&state::save(&self.student.weights, adam, progressed)?)
    }

    fn step(&mut self, number: u64, rate: &Rate, adam: &mut AdamW) -> Result<Step, OperatorError> {
        let batch = self.order().batch(number);
        let passes = pack(&gradient::lengths(&batch, self.examples), self.params.pass_tokens);
        let whole = gradient::whole_weight(&batch, self.examples);
        let mut gradients = Gradients::new();
        let mut outcome = Outcome::default();
        for (place, pass) in passes.iter().enumerate() {
            let dropout = self.params.dropout().map(|_| Dropout { seed: mixed(self.context.seed(), number, place) });
            let settings = Settings { checkpointing: self.params.checkpointing, dropout, scale: 1.0 / whole.max(1e-9) };
            let one = gradient::pass(self.student, pass, self.examples, settings, &mut gradients).map_err(failed)?;
            outcome.loss += one.loss;
            outcome.right += one.right;
        }
        let loss = outcome.loss / whole.max(1e-9);
        let grad_norm = norm(&gradients).map_err(failed)?;
        if !loss.is_finite() || !grad_norm.is_finite() {
            return Err(self.diverged(number, loss, grad_norm, &batch));
        }
        let clip = self.params.max_grad_norm.map_or(1.0, |most| (most / (grad_norm + 1e-6)).min(1.0));
        let learning_rate = rate.at(number);
        adam.step(&self.student.weights, &gradients, learning_rate, clip).map_err(failed)?;
        Ok(Step {
            step: number + 1,
            epoch: (number + 1) as f64 / self.order().steps_per_epoch() as f64,
            loss,
            learning_rate,
            grad_norm,
            tokens: batch.iter().map(|example| self.examples[*example].tokens.len() as u64).sum(),
            targets: batch.iter().map(|example| self.examples[*example].targets() as u64).sum(),
            token_accuracy: outcome.right / whole.max(1e-9),
            eval_loss: None,
            eval_token_accuracy: None,
        })
    }

    fn diverged(&self, number: u64, loss: f64, grad_norm: f64, batch: &[usize]) -> OperatorError {
        let ids: Vec<&str> = batch.iter().take(4).map(|example| self.examples[*example].id.as_str()).collect();
        let message = format!(
            "step {}: the loss is {loss} and the norm of the gradients {grad_norm} (examples {}, …)",
            number + 1,
            ids.join(", ")
        );
        OperatorError::data(message).with_help(
            "lower `learning_rate`, or give `max_grad_norm`; NaN at the first step: the model's weights hold NaN",
        )
    }

    /// Measures on what is held out, where it is time to.
    fn measure(&self, step: &mut Step, total: u64, progressed: &mut Progressed) -> Result<(), OperatorError> {
        let due = step.step.is_multiple_of(self.params.eval_steps) || step.step == total;
        if !due || self.held_out.is_empty() {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.held_out.len()).collect();
        let whole = gradient::whole_weight(&all, self.held_out).max(1e-9);
        let mut outcome = Outcome::default();
        for pass in pack(&gradient::lengths(&all, self.held_out), self.params.pass_tokens) {
            let one = gradient::evaluate(self.student, &pass, self.held_out).map_err(failed)?;
            outcome.loss += one.loss;
            outcome.right += one.right;
        }
        let loss = outcome.loss / whole;
        step.eval_loss = Some(loss);
        step.eval_token_accuracy = Some(outcome.right / whole);
        if progressed.best.as_ref().is_none_or(|best| loss < best.loss) {
            progressed.stale = 0;
            let needed = self.params.keep == Keep::Best;
            let weights = if needed { state::copied(&self.student.weights)? } else { BTreeMap::new() };
            progressed.best = Some(Best { loss, step: step.step, weights });
        } else {
            progressed.stale += 1;
            progressed.stopped = self.params.early_stopping.is_some_and(|patience| progressed.stale >= patience);
        }
        Ok(())
    }

    /// Puts the weights that are kept in place; the step they are of.
    fn keep(&self, progressed: &Progressed) -> Result<u64, OperatorError> {
        match &progressed.best {
            Some(best) if self.params.keep == Keep::Best => {
                for (name, numbers) in &best.weights {
                    state::set(&self.student.weights[name], numbers.clone())?;
                }
                Ok(best.step)
            }
            _ => Ok(progressed.steps.len() as u64),
        }
    }

    fn tell(&self, step: &Step, total: u64, tokens: u64, time: Duration) {
        let progress = self.context.progress();
        progress.set(step.step, total, "steps");
        // A table of all steps comes out anyway; a log of thousands would bury all else.
        if step.step != 1 && step.eval_loss.is_none() && !step.step.is_multiple_of(total.div_ceil(LINES).max(1)) {
            return;
        }
        let rate = tokens as f64 / time.as_secs_f64().max(1e-9);
        let eval = step.eval_loss.map_or_else(String::new, |loss| format!(" eval_loss {loss:.4}"));
        progress.log(&format!(
            "step {}/{total} loss {:.4} lr {:.3e} grad_norm {:.3} tokens/s {rate:.0}{eval}",
            step.step, step.loss, step.learning_rate, step.grad_norm
        ));
    }
}

/// A seed of its own for each pass of each step (the finaliser of SplitMix64).
fn mixed(seed: u64, step: u64, pass: usize) -> u64 {
    let mut mixed = seed ^ ((step << 16) | pass as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
