//! `advantage`: how much better each rollout is than the others of its question.

mod method;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
    RowsInput, allow_names, named_or_tagged,
};
use searchmill_schemas::{RecordKind, RecordedTokens, text_column};
use serde::{Deserialize, Serialize};

use self::method::{Alone, Method, Rollout};
use crate::columns::{with_columns, with_fields};
use crate::numbers::{finite, numbers};
use crate::relation::{Grouping, Keys, check_key, columns_checked, unknown_key, unknown_keys};
use crate::unfit::Unfit;

/// Port of the rows, in and out.
const ROWS: &str = "trajectories";

/// The column that is added.
const ADVANTAGE: &str = "advantage";

/// Rewards that differ by less are equal.
const SPREAD: f64 = 1e-9;

/// Adds the column `advantage`: how much better or worse a rollout is than expected, from its reward and those of the other
/// rollouts of its question. Each token that the model wrote in the rollout has this advantage. All columns pass
/// unchanged, in order. Rollouts without a finite reward are rejects, and no part of any mean. The summary counts
/// questions whose rollouts all earn the same: they teach nothing.
pub(crate) struct Advantage;

/// Parameters of `advantage`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct AdvantageParams {
    /// How advantages follow from rewards, by name (`rloo`) or with options (`grpo: {epsilon: 1e-6}`).
    #[serde(deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub(crate) method: Method,
    /// The rewards: a column or an SQL expression.
    pub(crate) reward: String,
    /// Compare rollouts that agree in these columns or SQL expressions (`[question_id]`).
    pub(crate) by: Vec<String>,
    /// The advantage of a rollout that is the only one of its question.
    pub(crate) alone: Alone,
}

impl Default for AdvantageParams {
    fn default() -> Self {
        Self {
            method: Method::default(),
            reward: "reward".to_owned(),
            by: vec!["question_id".to_owned()],
            alone: Alone::default(),
        }
    }
}

impl Operator for Advantage {
    type Params = AdvantageParams;
    const NAME: &'static str = "advantage";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Computes how much better each rollout is than the others of its question.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "GRPO, as in TRL", yaml: "scored: {op: advantage, from: rewarded}" },
        Example {
            title: "GRPO, as in verl",
            yaml: "scored: {op: advantage, from: rewarded, with: {method: {grpo: {epsilon: 1e-6}}, alone: reward}}",
        },
        Example {
            title: "Without the deviation (Dr. GRPO), by another column",
            yaml: "scored: {op: advantage, from: rewarded, with: {method: dr_grpo, reward: f1}}",
        },
        Example {
            title: "REINFORCE++ with the mean of the question as baseline",
            yaml: "scored: {op: advantage, from: rewarded, with: {method: reinforce++-baseline}}",
        },
    ];

    fn declare(params: &AdvantageParams) -> Declaration {
        let ports = Ports::new()
            .rows_in(ROWS, &[RecordKind::Trajectory], "Rollouts with a reward, several per question.")
            .rows_out(ROWS, RecordKind::Trajectory, "The rollouts with the column `advantage`.");
        let checked = params.clone();
        let declaration = Declaration::pure(ports).issues(issues(params)).gives(|inputs| {
            let scored = |schema| (ROWS.to_owned(), with_fields(schema, &[field()]));
            inputs.get(ROWS).map(|schema| scored(schema)).into_iter().collect()
        });
        declaration.checks_columns(move |tables| {
            let Some(schema) = tables.get(ROWS) else { return Vec::new() };
            let unfit = || columns_checked(tables, ROWS, |schema| checked.rewards(&empty(schema)).map(drop));
            let reward = unknown_key(schema, "reward", &checked.reward).or_else(unfit);
            reward.into_iter().chain(unknown_keys(schema, "by", &checked.by)).collect()
        })
    }

    fn open(params: &AdvantageParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn field() -> Field {
    Field::new(ADVANTAGE, DataType::Float64, false)
}

fn empty(schema: &SchemaRef) -> RecordBatch {
    RecordBatch::new_empty(SchemaRef::clone(schema))
}

fn issues(params: &AdvantageParams) -> Vec<ParamIssue> {
    let keys = params.by.iter().enumerate();
    let keys = keys.filter_map(|(place, text)| check_key(&format!("by.{place}"), text));
    let none = params.by.is_empty().then(|| ParamIssue::new("by", "name at least one column"));
    let epsilon = match params.method {
        Method::Grpo { epsilon, .. } if !(epsilon.is_finite() && epsilon >= 0.0) => {
            Some(ParamIssue::new("method.grpo.epsilon", format!("must be 0 or more, found {epsilon}")))
        }
        _ => None,
    };
    check_key("reward", &params.reward).into_iter().chain(keys).chain(none).chain(epsilon).collect()
}

impl BlockingKernel for AdvantageParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows(ROWS)?;
        let rollouts = self.read(rows, context)?;
        let mut advantages = method::advantages(self.method, self.alone, &rollouts).into_iter();
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let ids = text_column(&batch, "id")?;
            let mut kept = Vec::new();
            for (row, reward) in self.rewards(&batch)?.into_iter().enumerate() {
                if reward.is_some() {
                    kept.push(row as u32);
                } else {
                    let unfit = Unfit::new(format!("`{}` is null or no finite number", self.reward));
                    outputs.reject(unfit.reject(ids.value(row).to_owned()))?;
                }
            }
            if kept.is_empty() {
                continue;
            }
            let of_batch: ArrayRef = Arc::new(Float64Array::from_iter_values(advantages.by_ref().take(kept.len())));
            let taken = take_record_batch(&batch, &UInt32Array::from(kept))?;
            outputs.write(ROWS, &with_columns(&taken, vec![(field(), of_batch)])?)?;
        }
        tell(&rollouts, outputs);
        Ok(())
    }
}

impl AdvantageParams {
    /// Reads the rollouts that have a reward.
    fn read(&self, rows: &RowsInput, context: &Context) -> Result<Vec<Rollout>, OperatorError> {
        let mut grouping = Grouping::new(&rows.schema, "by", &self.by)?;
        let mut rollouts = Vec::with_capacity(rows.rows as usize);
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let tokens = if self.method.weighs_tokens() { authored(&batch)? } else { vec![1; batch.num_rows()] };
            let groups = grouping.assign(&batch)?;
            let rows = groups.into_iter().zip(self.rewards(&batch)?).zip(tokens);
            rollouts
                .extend(rows.filter_map(|((group, reward), tokens)| Some(Rollout { group, reward: reward?, tokens })));
        }
        Ok(rollouts)
    }

    /// Returns the reward of each row; `None`: null or no finite number.
    fn rewards(&self, batch: &RecordBatch) -> Result<Vec<Option<f64>>, OperatorError> {
        let column = Keys::new(&batch.schema(), "reward", std::slice::from_ref(&self.reward))?.values(batch)?.remove(0);
        let Some(rewards) = numbers(&column)? else {
            let message = format!("`reward`: `{}` is {}, not a number", self.reward, column.data_type());
            return Err(OperatorError::pipeline(message).with_help("name the column of rewards in `reward`"));
        };
        Ok((0..batch.num_rows()).map(|row| finite(&rewards, row)).collect())
    }
}

/// Returns how many tokens the model wrote in each rollout: the recorded ones, else those that the policy counted.
fn authored(batch: &RecordBatch) -> Result<Vec<u64>, OperatorError> {
    if let Some(recorded) = RecordedTokens::from_batch(batch)? {
        let sampled = |row: &RecordedTokens| {
            row.tokens.iter().filter(|span| span.sampled).map(|span| span.ids.len() as u64).sum()
        };
        return Ok(recorded.iter().map(sampled).collect());
    }
    let missing = || OperatorError::pipeline("the rollouts have no column `completion_tokens`");
    let counts = batch.column_by_name("completion_tokens").ok_or_else(missing)?;
    let counts = counts.as_primitive_opt::<Int64Type>().ok_or_else(missing)?;
    let count = |row| if counts.is_valid(row) { u64::try_from(counts.value(row)).unwrap_or(0) } else { 0 };
    Ok((0..batch.num_rows()).map(count).collect())
}

/// Reports what the rewards of the questions are like.
fn tell(rollouts: &[Rollout], outputs: &mut Outputs) {
    let groups = method::groups(rollouts);
    let is_equal = |members: &&Vec<usize>| {
        let rewards = || members.iter().map(|row| rollouts[*row].reward);
        let (least, most) = (rewards().fold(f64::INFINITY, f64::min), rewards().fold(f64::NEG_INFINITY, f64::max));
        members.len() > 1 && most - least < SPREAD
    };
    let alone = groups.iter().filter(|members| members.len() == 1).count();
    let equal = groups.iter().filter(is_equal).count();
    let mean = rollouts.iter().map(|rollout| rollout.reward).sum::<f64>() / rollouts.len().max(1) as f64;
    for (name, figure) in [("groups", groups.len()), ("groups_without_spread", equal), ("groups_of_one", alone)] {
        outputs.figure(name, figure as f64);
    }
    outputs.figure("mean_reward", mean);
    let mut text = format!("mean reward {mean:.4} · {} rollouts of {} questions\n", rollouts.len(), groups.len());
    if equal > 0 {
        text +=
            &format!("without a difference between their rollouts, so that they teach nothing: {equal} questions\n");
    }
    if alone > 0 {
        text += &format!("with one rollout, which nothing is compared with: {alone} questions\n");
    }
    outputs.summary(&text);
}
