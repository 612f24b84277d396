//! What the rollouts of a training are like: rewards, lengths, searches, and how they ended.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Float64Array, RecordBatch};
use searchmill_engine::operator::{OperatorError, Outputs, RowsInput};
use searchmill_models::training::example::Example;
use searchmill_schemas::{text_column, text_value};

use crate::shared::numbers::{finite, numbers};

/// The mean reward of a step, also among the metrics of an external trainer.
pub(super) const REWARD: &str = "reward";

/// The reason for the end of a rollout that has an answer.
const ANSWERED: &str = "answered";

/// Names of the means in the table of steps.
pub(super) const MEANS: [&str; 4] = [REWARD, "rollout_tokens", "searches", "unanswered"];

/// What one rollout is like.
struct Rollout {
    reward: Option<f64>,
    searches: Option<f64>,
    finish: String,
}

/// The rollouts of a training, by id.
#[derive(Default)]
pub(super) struct Earned {
    rollouts: BTreeMap<String, Rollout>,
    /// Tokens that the model sampled in each rollout that is trained on.
    tokens: BTreeMap<String, usize>,
}

impl Earned {
    /// Reads the columns `reward` (if there is one), `tool_calls` and `finish_reason` of the rollouts that are trained on.
    pub(super) fn read(rows: &RowsInput, examples: &[Example]) -> Result<Self, OperatorError> {
        let mut earned = Self::default();
        // Only rollouts that are trained on have an entry; several sequences of one are one.
        for example in examples {
            *earned.tokens.entry(example.id.clone()).or_default() += example.targets();
        }
        for batch in rows.batches() {
            let batch = batch?;
            let (ids, ends) = (text_column(&batch, "id")?, text_column(&batch, "finish_reason")?);
            let (rewards, searches) = (figures(&batch, REWARD)?, figures(&batch, "tool_calls")?);
            for row in 0..batch.num_rows() {
                // A rejected rollout changes no weight, and does not count.
                if !earned.tokens.contains_key(ids.value(row)) {
                    continue;
                }
                let rollout = Rollout {
                    reward: rewards.as_ref().and_then(|rewards| finite(rewards, row)),
                    searches: searches.as_ref().and_then(|searches| finite(searches, row)),
                    finish: text_value(ends, row).unwrap_or_default().to_owned(),
                };
                earned.rollouts.insert(ids.value(row).to_owned(), rollout);
            }
        }
        Ok(earned)
    }

    /// Returns means over these rollouts by name, for the table of steps.
    pub(super) fn means(&self, ids: &BTreeSet<&str>) -> BTreeMap<String, f64> {
        let [mut rewards, mut lengths, mut searches, mut unanswered] = [const { Vec::new() }; 4];
        for id in ids {
            lengths.extend(self.tokens.get(*id).map(|count| *count as f64));
            let Some(rollout) = self.rollouts.get(*id) else { continue };
            rewards.extend(rollout.reward);
            searches.extend(rollout.searches);
            unanswered.push(if rollout.finish == ANSWERED { 0.0 } else { 1.0 });
        }
        let mut means = BTreeMap::new();
        for (name, numbers) in MEANS.into_iter().zip([rewards, lengths, searches, unanswered]) {
            if !numbers.is_empty() {
                let mut sum = 0.0;
                for number in &numbers {
                    sum += number;
                }
                means.insert(name.to_owned(), sum / numbers.len() as f64);
            }
        }
        means
    }

    /// Adds the figures of all rollouts to the node's record, and a line to its summary.
    pub(super) fn publish(&self, outputs: &mut Outputs) {
        let means = self.means(&self.tokens.keys().map(String::as_str).collect());
        for (name, figure) in &means {
            if name != REWARD {
                outputs.figure(name, *figure);
            }
        }
        let mut parts = Vec::new();
        if let Some(mean) = means.get(REWARD) {
            let rewards: Vec<f64> = self.rollouts.values().filter_map(|rollout| rollout.reward).collect();
            let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
            let deviation = (squares / (rewards.len().saturating_sub(1)).max(1) as f64).sqrt();
            outputs.figure("reward_mean", *mean);
            outputs.figure("reward_deviation", deviation);
            parts.push(format!("reward {mean:.3} (deviation {deviation:.3})"));
        }
        for (name, unit) in [("rollout_tokens", "tokens"), ("searches", "searches")] {
            parts.extend(means.get(name).map(|mean| format!("{mean:.1} {unit}")));
        }
        // How the rollouts ended that have no answer.
        let mut counts = BTreeMap::<&str, usize>::new();
        for rollout in self.rollouts.values().filter(|rollout| rollout.finish != ANSWERED) {
            *counts.entry(&rollout.finish).or_default() += 1;
        }
        for (end, count) in counts {
            let share = 100.0 * count as f64 / self.rollouts.len().max(1) as f64;
            parts.push(format!("{end} {share:.1} %"));
        }
        if !parts.is_empty() {
            outputs.summary(&format!("rollouts: {}\n", parts.join(", ")));
        }
    }
}

/// Returns a column as numbers if it holds some.
fn figures(batch: &RecordBatch, name: &str) -> Result<Option<Float64Array>, OperatorError> {
    match batch.column_by_name(name) {
        Some(column) if column.data_type().is_numeric() => numbers(column),
        _ => Ok(None),
    }
}
