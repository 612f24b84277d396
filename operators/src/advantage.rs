//! `advantage`: how much better each rollout is than the others of its question.

mod divergence;
mod method;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Float64Builder, ListBuilder, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs,
    ParamIssue, Ports, Repeatability, RowsInput, TreeKind, allow_names, named_or_tagged,
};
use searchmill_models::training::example::Unfit as NoExample;
use searchmill_models::training::recorded::{Recording, Sequence};
use searchmill_models::training::rollouts::{ADVANTAGE, TOKEN_ADVANTAGES};
use searchmill_schemas::{RecordKind, RecordedTokens, text_column};
use serde::{Deserialize, Serialize};

use self::divergence::{REFERENCE, RewardKl};
use self::method::{Alone, Method, Rollout};
use super::shared::columns::{with_columns, with_fields, without};
use super::shared::numbers::{finite, numbers};
use super::shared::relation::{Grouping, Keys, check_key, check_keys, columns_checked, unknown_key, unknown_keys};
use super::shared::unfit::Unfit;

/// Port of the rows, in and out.
const ROWS: &str = "trajectories";

/// Rewards that differ by less are equal.
const SPREAD: f64 = 1e-9;

/// Adds the column `advantage`: how much better or worse a rollout is than expected, from its reward and those of the other
/// rollouts of its question. Each token that the model wrote in the rollout has this advantage. All columns pass
/// unchanged, in order. Rollouts without a finite reward are rejects, and no part of any mean. The summary counts
/// questions whose rollouts all earn the same: they teach nothing.
///
/// With `kl`, each sampled token of `reinforce++` and `reinforce++-baseline` pays for its divergence from the model of the
/// input `reference`, and has an advantage of its own: what the rollout earns less what is paid from it to its end,
/// whitened over all sampled tokens (arXiv:2501.03262; R1-Searcher's OpenRLHF). These are in the column
/// `token_advantages`, in the order of the recorded tokens; `train` learns from them. `advantage` is then their mean. The
/// rollouts need recorded tokens (`record: tokens`). Without `kl`, a column `token_advantages` is dropped.
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
    /// Pay for the divergence from the model of the input `reference`, with `reinforce++` and `reinforce++-baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kl: Option<RewardKl>,
}

impl Default for AdvantageParams {
    fn default() -> Self {
        let (method, alone) = (Method::default(), Alone::default());
        Self { method, reward: "reward".to_owned(), by: vec!["question_id".to_owned()], alone, kl: None }
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
        Example {
            title: "REINFORCE++ with the divergence from the first model in the reward",
            yaml: "scored: {op: advantage, from: {trajectories: rewarded, reference: student}, with: {method: reinforce++, kl: {coefficient: 0.001}}}",
        },
    ];

    fn declare(params: &AdvantageParams) -> Declaration {
        let mut ports = Ports::new()
            .rows_in(ROWS, &[RecordKind::Trajectory], "Rollouts with a reward, several per question.")
            .rows_out(ROWS, RecordKind::Trajectory, "The rollouts with the column `advantage`.");
        // Only with `kl`: an input that is not used would be part of the key.
        let (checked, has_kl) = (params.clone(), params.kl.is_some());
        if has_kl {
            let about = "The model from which the divergence is measured.";
            ports = ports.input_of(REFERENCE, Accept::Tree(TreeKind::Model), Arity::One, about);
        }
        let declaration = Declaration::pure(ports).issues(issues(params)).passes_variant(ROWS).gives(move |inputs| {
            let Some(schema) = inputs.get(ROWS) else { return BTreeMap::new() };
            // Advantages of tokens that an earlier node left belong to other rewards.
            let rest = without(&empty(schema), TOKEN_ADVANTAGES).map_or(schema.clone(), |rest| rest.schema());
            let new = if has_kl { vec![field(), token_field()] } else { vec![field()] };
            BTreeMap::from([(ROWS.to_owned(), with_fields(&rest, &new))])
        });
        // A forward pass gives other bits on another kind of processor.
        let declaration =
            if has_kl { declaration.repeatability(Repeatability::Processor).uses_gpus(true) } else { declaration };
        declaration.checks_columns(move |tables| {
            let Some(schema) = tables.get(ROWS) else { return Vec::new() };
            let unknown = unknown_key(schema, "reward", &checked.reward);
            let unfit = unknown.or_else(|| columns_checked(tables, ROWS, |schema| checked.rewards(&empty(schema))));
            unfit.into_iter().chain(unknown_keys(schema, "by", &checked.by)).collect()
        })
    }

    fn open(params: &AdvantageParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn field() -> Field {
    Field::new(ADVANTAGE, DataType::Float64, false)
}

fn token_field() -> Field {
    Field::new(TOKEN_ADVANTAGES, DataType::new_list(DataType::Float64, false), false)
}

fn empty(schema: &SchemaRef) -> RecordBatch {
    RecordBatch::new_empty(SchemaRef::clone(schema))
}

fn issues(params: &AdvantageParams) -> Vec<ParamIssue> {
    let mut issues: Vec<ParamIssue> = check_key("reward", &params.reward).into_iter().collect();
    issues.extend(check_keys("by", &params.by));
    if params.by.is_empty() {
        issues.push(ParamIssue::new("by", "name at least one column"));
    }
    if let Method::Grpo { epsilon, .. } = params.method
        && !(epsilon.is_finite() && epsilon >= 0.0)
    {
        issues.push(ParamIssue::new("method.grpo.epsilon", format!("must be 0 or more, found {epsilon}")));
    }
    let Some(kl) = params.kl else { return issues };
    if !(kl.coefficient.is_finite() && kl.coefficient >= 0.0) {
        let issue = ParamIssue::new("kl.coefficient", format!("must be 0 or more, found {}", kl.coefficient));
        issues.push(issue.with_help("0.001 is common"));
    }
    if !params.method.weighs_tokens() {
        let issue = ParamIssue::new("kl", "belongs to `method: reinforce++` and `method: reinforce++-baseline`");
        issues.push(issue.with_help("write it in `train`, as `policy_loss: {kl: {coefficient: 0.001}}`"));
    }
    issues
}

/// The rows of the input.
struct Read {
    /// Why a row has no advantage, for each row.
    unfit: Vec<Option<String>>,
    /// The other rows.
    rollouts: Vec<Rollout>,
    /// Their recorded tokens, with `kl`.
    sequences: Vec<Vec<Sequence>>,
}

impl BlockingKernel for AdvantageParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows(ROWS)?;
        let recording = if self.kl.is_some() { Some(divergence::recording(inputs)?) } else { None };
        let Read { unfit, rollouts, sequences } = self.read(rows, recording, context)?;
        let (advantages, of_tokens) = match self.kl {
            None => (method::advantages(self.method, self.alone, &rollouts), None),
            Some(kl) => {
                let costs = divergence::costs(kl, &sequences, inputs, context)?;
                divergence::report(kl, &costs, outputs);
                let of_tokens = method::token_advantages(self.method, self.alone, &rollouts, &costs);
                // A rollout without sampled tokens has an advantage of 0.
                let means = of_tokens.iter().map(|all| all.iter().sum::<f64>() / all.len().max(1) as f64);
                (means.collect::<Vec<_>>(), Some(of_tokens))
            }
        };
        // The rows are read once more: advantages need all rewards, and only these were held in memory.
        let (mut unfit, mut done) = (unfit.into_iter(), 0);
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let ids = text_column(&batch, "id")?;
            let mut fit = Vec::new();
            for (row, why) in unfit.by_ref().take(batch.num_rows()).enumerate() {
                match why {
                    None => fit.push(row as u32),
                    Some(why) => outputs.reject(Unfit::new(why).reject(ids.value(row).to_owned()))?,
                }
            }
            if fit.is_empty() {
                continue;
            }
            let part = done..done + fit.len();
            done = part.end;
            let rows = without(&take_record_batch(&batch, &UInt32Array::from(fit))?, TOKEN_ADVANTAGES)?;
            let values = Float64Array::from(advantages[part.clone()].to_vec());
            let mut columns: Vec<(Field, ArrayRef)> = vec![(field(), Arc::new(values))];
            if let Some(of_tokens) = &of_tokens {
                let item = Field::new("item", DataType::Float64, false);
                let mut lists = ListBuilder::new(Float64Builder::new()).with_field(item);
                for all in &of_tokens[part] {
                    lists.values().append_slice(all);
                    lists.append(true);
                }
                columns.push((token_field(), Arc::new(lists.finish())));
            }
            outputs.write(ROWS, &with_columns(&rows, columns)?)?;
        }
        report(&rollouts, outputs);
        Ok(())
    }
}

impl AdvantageParams {
    /// Reads the rollouts that have a reward, and, with `kl`, tokens that were sampled from the model's own distribution.
    fn read(&self, rows: &RowsInput, recording: Option<Recording>, context: &Context) -> Result<Read, OperatorError> {
        let mut grouping = Grouping::new(&rows.schema, "by", &self.by)?;
        let mut read = Read { unfit: Vec::new(), rollouts: Vec::new(), sequences: Vec::new() };
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            // The other methods do not count tokens, so the rollouts need no column of them.
            let tokens = if self.method.weighs_tokens() { authored(&batch)? } else { vec![1; batch.num_rows()] };
            let recorded = if recording.is_some() { Some(divergence::recorded(&batch)?) } else { None };
            let groups = grouping.assign(&batch)?;
            let rewards = self.rewards(&batch)?;
            for (row, ((group, reward), tokens)) in groups.into_iter().zip(rewards).zip(tokens).enumerate() {
                let Some(reward) = reward else {
                    read.unfit.push(Some(format!("`{}` is null or no finite number", self.reward)));
                    continue;
                };
                if let (Some(recording), Some(recorded)) = (&recording, &recorded) {
                    match recording.sampled(&recorded[row]) {
                        Ok(sequences) => read.sequences.push(sequences),
                        Err(NoExample::Row(why)) => {
                            read.unfit.push(Some(why));
                            continue;
                        }
                        // No row can be read then: the tokens are of another model.
                        Err(NoExample::Vocabulary(error)) => return Err(error),
                    }
                }
                read.unfit.push(None);
                read.rollouts.push(Rollout { group, reward, tokens });
            }
        }
        Ok(read)
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
        let mut authored = Vec::with_capacity(batch.num_rows());
        for row in &recorded {
            authored.push(row.tokens.iter().filter(|span| span.sampled).map(|span| span.ids.len() as u64).sum());
        }
        return Ok(authored);
    }
    let column = batch.column_by_name("completion_tokens");
    let Some(counts) = column.and_then(|column| column.as_primitive_opt::<Int64Type>()) else {
        return Err(OperatorError::pipeline("the rollouts have no column `completion_tokens`"));
    };
    // An endpoint may report no count.
    Ok(counts.iter().map(|count| u64::try_from(count.unwrap_or(0)).unwrap_or(0)).collect())
}

/// Reports what the rewards of the questions are like.
fn report(rollouts: &[Rollout], outputs: &mut Outputs) {
    let groups = method::groups(rollouts);
    let (mut alone, mut equal) = (0, 0);
    for members in &groups {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for row in members {
            least = least.min(rollouts[*row].reward);
            most = most.max(rollouts[*row].reward);
        }
        alone += usize::from(members.len() == 1);
        equal += usize::from(members.len() > 1 && most - least < SPREAD);
    }
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
