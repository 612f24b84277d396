//! The report of a training: curves as inline SVG, and the same metrics as JSON and as a table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use searchmill_engine::operator::{OperatorError, Outputs};
use searchmill_models::on_path;
use searchmill_models::training::state::{PolicyStep, PreferenceStep, Step};
use searchmill_models::training::student::Tuning;
use serde_json::json;

use super::earned::{MEANS, REWARD};
use super::params::{Method, TrainParams};
use super::tensorboard;
use crate::shared::html::plot::{Plot, Series, Unit};
use crate::shared::html::table::NOTHING;
use crate::shared::html::{self, Card};

/// Maximum number of points of a curve; more steps are averaged.
const POINTS: usize = 80;

/// A curve: its name, the CSS class of its colour, its value at a step.
type Curve<'a> = (&'a str, &'static str, Value<'a>);
type Value<'a> = &'a dyn Fn(&Step) -> Option<f64>;

/// Content of the report.
pub(super) struct Report<'a> {
    pub(super) params: &'a TrainParams,
    pub(super) steps: &'a [Step],
    /// Other metrics of an external trainer, by step and name.
    pub(super) more: &'a BTreeMap<u64, BTreeMap<String, f64>>,
    /// The step whose weights were kept.
    pub(super) kept: u64,
    pub(super) stopped: bool,
    pub(super) examples: usize,
    pub(super) held_out: usize,
    /// Trained parameters.
    pub(super) trainable: usize,
    /// Parameters of the model.
    pub(super) parameters: usize,
    /// Device and precision, or the trainer.
    pub(super) device: String,
}

/// Returns a table with one row per step. The other metrics are columns after those of every training.
fn table(steps: &[Step], more: &BTreeMap<u64, BTreeMap<String, f64>>) -> Result<RecordBatch, OperatorError> {
    let mut columns = vec![
        ("step", counts(steps, |step| step.step), true),
        ("epoch", numbers(steps, |step| Some(step.epoch)), true),
        ("loss", numbers(steps, |step| Some(step.loss)), true),
        ("learning_rate", numbers(steps, |step| Some(step.learning_rate)), true),
        ("grad_norm", numbers(steps, |step| Some(step.grad_norm)), true),
        ("tokens", counts(steps, |step| step.tokens), true),
        ("targets", counts(steps, |step| step.targets), true),
        ("token_accuracy", numbers(steps, |step| Some(step.token_accuracy)), true),
        ("eval_loss", numbers(steps, |step| step.eval_loss), true),
        ("eval_token_accuracy", numbers(steps, |step| step.eval_token_accuracy), true),
    ];
    let names: BTreeSet<&String> = more.values().flat_map(BTreeMap::keys).collect();
    for name in names {
        let known: Float64Array = steps.iter().map(|step| more.get(&step.step)?.get(name).copied()).collect();
        columns.push((name, Arc::new(known), true));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// Returns a column of numbers. External trainers log only some metrics: NaN means unknown.
fn numbers(steps: &[Step], of: fn(&Step) -> Option<f64>) -> ArrayRef {
    let known = steps.iter().map(|step| of(step).filter(|number| !number.is_nan()));
    Arc::new(known.collect::<Float64Array>())
}

/// Returns a column of counts, in which 0 means unknown.
fn counts(steps: &[Step], of: fn(&Step) -> u64) -> ArrayRef {
    let known = steps.iter().map(|step| Some(of(step) as i64).filter(|count| *count > 0));
    Arc::new(known.collect::<Int64Array>())
}

/// Returns the columns that the steps of a training in this process have at most: figures that were not measured are left out.
pub(super) fn columns(method: Method) -> Result<SchemaRef, OperatorError> {
    let names: Vec<&str> = match method {
        Method::Grpo | Method::ReinforcePlusPlus => PolicyStep::NAMES.into_iter().chain(MEANS).collect(),
        Method::Dpo => PreferenceStep::NAMES.to_vec(),
        Method::Sft | Method::External => Vec::new(),
    };
    let more = names.into_iter().map(|name| (name.to_owned(), 0.0)).collect();
    Ok(table(&[], &BTreeMap::from([(0, more)]))?.schema())
}

impl Report<'_> {
    /// Writes the table of the steps, the report, its summary and the figures of the node's record. Returns the folder
    /// of the report.
    pub(super) fn publish(&self, outputs: &mut Outputs) -> Result<PathBuf, OperatorError> {
        let steps = table(self.steps, &self.others())?;
        outputs.write("steps", &steps)?;
        let folder = outputs.tree("report")?;
        let page = folder.join("report.html");
        std::fs::write(&page, self.page()).map_err(on_path(&page))?;
        // The rows as they are: NaN becomes null.
        let mut whole = json!({
            "examples": self.examples, "held_out": self.held_out, "parameters": self.parameters,
            "trainable": self.trainable, "kept_step": self.kept, "stopped_early": self.stopped,
            "device": self.device, "params": self.params, "steps": self.steps,
        });
        if !self.more.is_empty() {
            whole["more"] = json!(self.more);
        }
        let path = folder.join("report.json");
        std::fs::write(&path, format!("{whole:#}\n")).map_err(on_path(&path))?;
        tensorboard::write(&steps, &folder.join(tensorboard::FILE))?;
        outputs.summary(&self.summary());
        outputs.figure("steps", self.taken() as f64);
        outputs.figure("trainable_parameters", self.trainable as f64);
        let (first, last) = (self.losses().next(), self.losses().next_back());
        let reward = self.more.values().filter_map(|named| named.get(REWARD)).next_back().copied();
        let figures = [("first_loss", first), ("last_loss", last), ("eval_loss", self.kept_eval()), ("reward", reward)];
        for (name, loss) in figures {
            if let Some(loss) = loss {
                outputs.figure(name, loss);
            }
        }
        Ok(folder)
    }

    /// Returns the metrics beyond those of every training, by step and name.
    fn others(&self) -> BTreeMap<u64, BTreeMap<String, f64>> {
        let mut others = self.more.clone();
        for step in self.steps {
            let mut figures = BTreeMap::new();
            if let Some(policy) = &step.policy {
                for (name, figure) in policy.named() {
                    figures.extend(figure.map(|figure| (name.to_owned(), figure)));
                }
            }
            if let Some(preference) = &step.preference {
                for (name, figure) in preference.named() {
                    figures.insert(name.to_owned(), figure);
                }
            }
            if !figures.is_empty() {
                others.entry(step.step).or_default().extend(figures);
            }
        }
        others
    }

    /// Returns the number of steps. A trainer may log only some of them.
    fn taken(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.step)
    }

    /// Returns the losses that were logged.
    fn losses(&self) -> impl DoubleEndedIterator<Item = f64> {
        self.steps.iter().map(|step| step.loss).filter(|loss| !loss.is_nan())
    }

    fn kept_eval(&self) -> Option<f64> {
        self.steps.iter().find(|step| step.step == self.kept).and_then(|step| step.eval_loss)
    }

    /// Returns a summary for the terminal.
    fn summary(&self) -> String {
        let ended = if self.stopped { ", ended early" } else { "" };
        let what = match self.params.method {
            Method::Sft => "examples",
            Method::External => "rows",
            Method::Dpo => "pairs",
            _ => "sequences",
        };
        let mut text = format!(
            "{} steps{ended} on {} {what}, {} held out; {} of {} parameters trained ({})\nloss {} → {}",
            self.taken(),
            self.examples,
            self.held_out,
            self.trainable,
            self.parameters,
            self.device,
            shown(self.losses().next()),
            shown(self.losses().next_back()),
        );
        if let Some(eval) = self.kept_eval() {
            text.push_str(&format!(", held out {eval:.3} at step {}", self.kept));
        }
        let mut rewards = self.more.values().filter_map(|named| named.get(REWARD));
        // With one step, both are the same.
        if let Some(first) = rewards.next() {
            text.push_str(&format!(", reward {first:.3} → {:.3}", rewards.next_back().unwrap_or(first)));
        }
        text + "\n"
    }

    fn page(&self) -> String {
        let mut out = html::cards(&self.cards()) + "<div class=\"plots\">";
        let mut losses: Vec<Curve<'_>> = vec![("Training", "c1", &|step| Some(step.loss))];
        let mut accuracies: Vec<Curve<'_>> = vec![("Training", "c1", &|step| Some(step.token_accuracy))];
        if self.steps.iter().any(|step| step.eval_loss.is_some()) {
            losses.push(("Held out", "c2", &|step| step.eval_loss));
            accuracies.push(("Held out", "c2", &|step| step.eval_token_accuracy));
        }
        let is_sft = self.params.method == Method::Sft;
        // First: what a reader of reinforcement learning looks for.
        self.push_rollouts(&mut out);
        out.push_str(&self.curves(if is_sft { "Loss per learnt token" } else { "Loss" }, &losses, Unit::Number));
        if is_sft {
            let title = "Tokens that the model would have written itself";
            out.push_str(&self.curves(title, &accuracies, Unit::Score));
        }
        self.push_policy(&mut out);
        if self.steps.iter().any(|step| step.preference.is_some()) {
            let chosen: Curve<'_> = ("Better rollouts", "c2", &|step| Some(step.preference?.chosen));
            let rejected: Curve<'_> = ("Worse rollouts", "c3", &|step| Some(step.preference?.rejected));
            out.push_str(&self.curves("Reward by the policy", &[chosen, rejected], Unit::Number));
            let right: &[Curve<'_>] = &[("Pairs", "c1", &|step| Some(step.preference?.accuracy))];
            out.push_str(&self.curves("Share of pairs in the right order", right, Unit::Score));
        }
        let norms: &[Curve<'_>] = &[("Norm", "c3", &|step| Some(step.grad_norm))];
        out.push_str(&self.curves("Norm of the gradients", norms, Unit::Number));
        // Ticks have three decimals, and rates are often below 0.001.
        let rates: &[Curve<'_>] = &[("Rate", "c4", &|step| Some(step.learning_rate * 1000.0))];
        out.push_str(&self.curves("Learning rate, in thousandths", rates, Unit::Number));
        html::page("Training", &(out + "</div>"))
    }

    /// Adds the curves of what the rollouts of each step are like.
    fn push_rollouts(&self, out: &mut String) {
        let curves = [
            (REWARD, "Mean reward", "Reward", "c2", Unit::Number),
            ("rollout_tokens", "Tokens that the model wrote in a rollout", "Tokens", "c1", Unit::Number),
            ("searches", "Searches in a rollout", "Searches", "c4", Unit::Number),
            ("unanswered", "Share of rollouts without an answer", "Rollouts", "c3", Unit::Score),
        ];
        for (name, title, label, class, unit) in curves {
            // Rollouts of one kind have no searches, and other trainers log other metrics.
            if self.steps.iter().any(|step| self.more.get(&step.step).is_some_and(|named| named.contains_key(name))) {
                let curve: Curve<'_> = (label, class, &|step| self.more.get(&step.step)?.get(name).copied());
                out.push_str(&self.curves(title, &[curve], unit));
            }
        }
    }

    /// Adds the curves of reinforcement learning.
    fn push_policy(&self, out: &mut String) {
        if self.steps.iter().all(|step| step.policy.is_none()) {
            return;
        }
        let kl: Curve<'_> = ("From the sampler", "c1", &|step| Some(step.policy?.kl));
        let reference: Curve<'_> = ("From the reference", "c2", &|step| step.policy?.reference_kl);
        let has_reference = self.steps.iter().any(|step| step.policy.is_some_and(|p| p.reference_kl.is_some()));
        let kls = if has_reference { vec![kl, reference] } else { vec![kl] };
        out.push_str(&self.curves("KL divergence", &kls, Unit::Number));
        let entropy: &[Curve<'_>] = &[("Entropy", "c4", &|step| step.policy?.entropy)];
        out.push_str(&self.curves("Entropy over the vocabulary, in nats", entropy, Unit::Number));
        let ratio: &[Curve<'_>] = &[("Ratio", "c2", &|step| Some(step.policy?.ratio))];
        out.push_str(&self.curves("Ratio of probabilities now and when sampled", ratio, Unit::Number));
        let clipped: &[Curve<'_>] = &[("Clipped", "c3", &|step| Some(step.policy?.clipped))];
        out.push_str(&self.curves("Share of tokens that are clipped", clipped, Unit::Score));
    }

    fn cards(&self) -> [Card; 4] {
        let (first, last) = (self.losses().next(), self.losses().next_back());
        let tuned = match &self.params.tuning {
            _ if self.params.method == Method::External => "by the program".to_owned(),
            Tuning::Full => "all weights".to_owned(),
            Tuning::Lora(lora) => format!("LoRA of rank {}", lora.rank),
        };
        let held_out = format!("step {}, {} examples", self.kept, self.held_out);
        let ended = if self.stopped { "ended early" } else { "all steps taken" };
        let trained = format!("of {} trained ({tuned})", self.parameters);
        [
            Card("Loss".to_owned(), shown(last), format!("{} at the first step", shown(first))),
            Card("Held out".to_owned(), shown(self.kept_eval()), held_out),
            Card("Steps".to_owned(), self.taken().to_string(), format!("{ended}, {} examples", self.examples)),
            Card("Parameters".to_owned(), self.trainable.to_string(), trained),
        ]
    }

    fn curves(&self, title: &str, series: &[Curve<'_>], unit: Unit) -> String {
        let width = self.steps.len().div_ceil(POINTS).max(1);
        let (mut categories, mut drawn) = (Vec::new(), Vec::new());
        for bucket in self.steps.chunks(width) {
            // A bucket of several steps is named after its last one.
            categories.extend(bucket.last().map(|step| step.step.to_string()));
        }
        for (name, class, of) in series {
            let mut means = Vec::new();
            for bucket in self.steps.chunks(width) {
                let values: Vec<f64> = bucket.iter().filter_map(of).filter(|value| !value.is_nan()).collect();
                let sum = values.iter().sum::<f64>();
                means.push(if values.is_empty() { None } else { Some(sum / values.len() as f64) });
            }
            drawn.push(Series::plain(name, class, means));
        }
        Plot { title: title.to_owned(), categories, series: drawn, unit, x_title: "step".to_owned() }.lines()
    }
}

fn shown(loss: Option<f64>) -> String {
    loss.map_or_else(|| NOTHING.to_owned(), |loss| format!("{loss:.3}"))
}
