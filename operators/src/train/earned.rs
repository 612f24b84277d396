//! What the rollouts of a training are like: rewards, lengths, searches, and how they ended.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, AsArray, Float64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use searchmill_engine::operator::{OperatorError, Outputs, RowsInput};
use searchmill_models::training::example::Example;
use searchmill_schemas::{text_column, text_value};

/// The mean reward of a step, also among the metrics of an external trainer.
pub(super) const REWARD: &str = "reward";

/// The reason for the end of a rollout that has an answer.
const ANSWERED: &str = "answered";

/// Names of the means in the table of steps.
pub(super) const MEANS: [&str; 4] = [REWARD, "rollout_tokens", "searches", "unanswered"];

/// What one rollout is like.
struct Told {
    reward: Option<f64>,
    searches: Option<f64>,
    finish: String,
}

/// The rollouts of a training, by id.
#[derive(Default)]
pub(super) struct Earned {
    rollouts: BTreeMap<String, Told>,
    /// Tokens that the model sampled in each rollout that is trained on.
    tokens: BTreeMap<String, usize>,
}

/// Means over some rollouts, by name.
type Means = BTreeMap<String, f64>;

impl Earned {
    /// Reads the columns `reward` (if there is one), `tool_calls` and `finish_reason` of the rollouts that are trained on.
    pub(super) fn read(rows: &RowsInput, examples: &[Example]) -> Result<Self, OperatorError> {
        let mut earned = Self::default();
        for example in examples {
            *earned.tokens.entry(example.id.clone()).or_default() += example.targets();
        }
        for batch in rows.batches() {
            let batch = batch?;
            let (ids, ends) = (text_column(&batch, "id")?, text_column(&batch, "finish_reason")?);
            let (rewards, searches) = (numbers(&batch, REWARD)?, numbers(&batch, "tool_calls")?);
            let at = |numbers: Option<&Float64Array>, row: usize| {
                let known = numbers.filter(|numbers| numbers.is_valid(row)).map(|numbers| numbers.value(row));
                known.filter(|number| number.is_finite())
            };
            for row in (0..batch.num_rows()).filter(|row| earned.tokens.contains_key(ids.value(*row))) {
                let finish = text_value(ends, row).unwrap_or_default().to_owned();
                let told = Told { reward: at(rewards.as_ref(), row), searches: at(searches.as_ref(), row), finish };
                earned.rollouts.insert(ids.value(row).to_owned(), told);
            }
        }
        Ok(earned)
    }

    /// Returns means over the rollouts of these examples, for the table of steps.
    pub(super) fn means<'a>(&self, examples: impl Iterator<Item = &'a Example>) -> Means {
        let ids: BTreeSet<&str> = examples.map(|example| example.id.as_str()).collect();
        self.means_of(&ids)
    }

    fn means_of(&self, ids: &BTreeSet<&str>) -> Means {
        let told: Vec<&Told> = ids.iter().filter_map(|id| self.rollouts.get(*id)).collect();
        let lengths = ids.iter().filter_map(|id| self.tokens.get(*id)).map(|count| *count as f64);
        let unanswered = told.iter().map(|told| if told.finish == ANSWERED { 0.0 } else { 1.0 });
        let means = [
            mean(told.iter().filter_map(|told| told.reward)),
            mean(lengths),
            mean(told.iter().filter_map(|told| told.searches)),
            mean(unanswered),
        ];
        let named = MEANS.into_iter().zip(means);
        named.into_iter().filter_map(|(name, mean)| Some((name.to_owned(), mean?))).collect()
    }

    /// Adds the figures of all rollouts to the node's record, and a line to its summary.
    pub(super) fn publish(&self, outputs: &mut Outputs) {
        let ids: BTreeSet<&str> = self.tokens.keys().map(String::as_str).collect();
        let means = self.means_of(&ids);
        for (name, figure) in means.iter().filter(|(name, _)| *name != REWARD) {
            outputs.figure(name, *figure);
        }
        let mut parts = Vec::new();
        let rewards: Vec<f64> = self.rollouts.values().filter_map(|told| told.reward).collect();
        if let Some(mean) = means.get(REWARD) {
            let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
            let deviation = (squares / (rewards.len().saturating_sub(1)).max(1) as f64).sqrt();
            outputs.figure("reward_mean", *mean);
            outputs.figure("reward_deviation", deviation);
            parts.push(format!("reward {mean:.3} (deviation {deviation:.3})"));
        }
        let mut push = |name: &str, unit: &str| {
            parts.extend(means.get(name).map(|mean| format!("{mean:.1} {unit}")));
        };
        push("rollout_tokens", "tokens");
        push("searches", "searches");
        let ends = self.ends();
        if !ends.is_empty() {
            parts.push(ends);
        }
        if !parts.is_empty() {
            outputs.summary(&format!("rollouts: {}\n", parts.join(", ")));
        }
    }

    /// Returns how the rollouts ended that have no answer.
    fn ends(&self) -> String {
        let mut counts = BTreeMap::<&str, usize>::new();
        for told in self.rollouts.values().filter(|told| told.finish != ANSWERED) {
            *counts.entry(&told.finish).or_default() += 1;
        }
        let share = |(end, count): (&&str, &usize)| {
            format!("{end} {:.1} %", 100.0 * *count as f64 / self.rollouts.len().max(1) as f64)
        };
        counts.iter().map(share).collect::<Vec<_>>().join(", ")
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0_usize), |(sum, count), number| (sum + number, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Returns a column as numbers if it holds some.
fn numbers(batch: &RecordBatch, name: &str) -> Result<Option<Float64Array>, OperatorError> {
    let column = batch.column_by_name(name).filter(|column| column.data_type().is_numeric());
    let Some(column) = column else { return Ok(None) };
    Ok(Some(cast(column, &DataType::Float64)?.as_primitive::<Float64Type>().clone()))
}
