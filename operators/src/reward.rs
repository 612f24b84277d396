//! `reward`: computes the reward of each rollout, by the rule of a public system or as a weighted sum.

mod rewarded;
mod statistics;
mod term;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array};
use arrow::compute::take_record_batch;
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_agent::reward::deepsearch_rl::ShortThink;
use searchmill_agent::reward::search_r1_format::FormatScores;
use searchmill_agent::reward::{Given, Rule, System, Transcript};
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
    Repeatability,
};
use searchmill_schemas::{RecordKind, Trajectory, from_batch};
use searchmill_text::chunking::{Counter, Memo};
use serde::{Deserialize, Serialize};

use super::shared::columns::{lists, with_all};
use super::shared::issues::unmet;
use super::shared::relation::columns_checked;
use super::shared::unfit::Unfit;
use crate::chunk::Count;
pub use rewarded::Rewarded;
use rewarded::require_answers;
use statistics::Statistics;
use term::{Columns, Term};

const PORT: &str = "trajectories";

/// Computes the reward of each rollout, by the rule of a public search-agent system or as a weighted sum of terms. All
/// rows pass in order with the columns `reward` and `reward_parts` (the named parts whose sum it is); earlier columns
/// of these names are replaced. A row that cannot be judged is a reject, never a reward of 0: without golden answers,
/// with golden answers of nothing but punctuation and articles, of another protocol, or with a column that is null or
/// not a number. The node's summary shows mean and spread, and the share of questions whose rollouts all have the
/// same reward: methods that compare the rollouts of a question (GRPO) learn nothing from them.
pub(crate) struct Reward;

/// Parameters of `reward`: either `system` or `sum`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct RewardParams {
    /// The system whose reward to compute. Rollouts must be of its protocol.
    pub(crate) system: Option<System>,
    /// With `system`: the form of its rule (default: `mended`, because a model learns to use the faults of the published
    /// one; `published` is for comparisons with the system's own training).
    pub(crate) rule: Option<Rule>,
    /// With `system: search-r1-v0.3`: what its format earns (default: the values of its scripts, structure 0.2, answer 0.1 and
    /// retrieval 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format_scores: Option<FormatScores>,
    /// The terms whose sum is the reward, each with its weight, for example `[{f1: 2}, {answered: 0.5}]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sum: Vec<Term>,
    /// Unit of the length of thoughts, for `short_think` and `system: deepsearch-rl`. The lengths of DeepSearch-RL are in
    /// tokens of the trained model: give its tokenizer for the same values.
    pub(crate) count: Count,
}

impl Operator for Reward {
    type Params = RewardParams;
    const NAME: &'static str = "reward";
    const VERSION: u32 = 3;
    const ABOUT: &'static str = "Computes the reward of each rollout, by a public system's rule or as a weighted sum.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "A sum: mostly the answer, a little for the format and for finding the evidence",
            yaml: "rewarded: {op: reward, from: rollouts, with: {sum: [{f1: 2}, {answered: 0.5}, {format: 0.2}, {retrieved: 0.1}]}}",
        },
        Example {
            title: "The reward of ReSearch without its faults",
            yaml: "rewarded: {op: reward, from: rollouts, with: {system: research}}",
        },
        Example {
            title: "The reward of Search-R1 0.3 exactly as published",
            yaml: "rewarded: {op: reward, from: rollouts, with: {system: search-r1-v0.3, rule: published}}",
        },
        Example {
            title: "F1, a judge's column, short thoughts in characters, and a penalty for long rollouts",
            yaml: "rewarded: {op: reward, from: judged, with: {count: characters, sum: [{f1: 1}, {column: {name: judged, weight: 0.5}}, {short_think: 0.5}, {length: {from: 3000, to: 4000}}]}}",
        },
    ];

    fn declare(params: &RewardParams) -> Declaration {
        let about = "The rollouts with their rewards, in the order of the input.";
        let ports = Ports::new().rows_in(PORT, &[RecordKind::Trajectory], "The rollouts.");
        let ports = ports.rows_out(PORT, RecordKind::Trajectory, about);
        let declaration = Declaration::pure(ports).issues(issues(params)).passes_variant(PORT).gives(|inputs| {
            let mut outputs = BTreeMap::new();
            if let Some(schema) = inputs.get(PORT)
                && let Ok(rewarded) = with_rewards(&RecordBatch::new_empty(Arc::clone(schema)), &[])
            {
                outputs.insert(PORT.to_owned(), rewarded.schema());
            }
            outputs
        });
        let sum = params.sum.clone();
        let declaration = declaration.checks_columns(move |tables| {
            let issue =
                columns_checked(tables, PORT, |schema| Columns::of(&RecordBatch::new_empty(Arc::clone(schema)), &sum));
            issue.into_iter().collect()
        });
        let declaration = params.count.declared(declaration);
        // The cosine of `short_think` may differ in the last bit between processors.
        if params.rewards_short_thoughts() { declaration.repeatability(Repeatability::Processor) } else { declaration }
    }

    fn open(params: &RewardParams, _inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let counter = params.count.counter(context)?;
        Ok(Kernel::Blocking(Box::new(Judge { params: params.clone(), counter })))
    }
}

impl RewardParams {
    fn rewards_short_thoughts(&self) -> bool {
        self.system.is_some_and(System::rewards_short_thoughts)
            || self.sum.iter().any(|term| matches!(term, Term::ShortThink(_)))
    }
}

pub(crate) fn issues(params: &RewardParams) -> Vec<ParamIssue> {
    let mut issues: Vec<_> = term::issues(&params.sum);
    issues.extend(params.count.issues());
    match (params.system, params.sum.is_empty()) {
        (None, true) => {
            let issue = ParamIssue::new("system", "the node has no reward");
            issues.push(issue.with_help("write `system: NAME` or `sum: [{f1: 1}]`"));
        }
        (Some(_), false) => {
            let issue = ParamIssue::new("sum", "the node has two rewards: `system` and `sum`");
            issues.push(issue.with_help("remove one of them, or add them up in two nodes with `column: reward`"));
        }
        (None, false) if params.rule.is_some() => {
            issues.push(ParamIssue::new("rule", "belongs to `system`").with_help("remove it"));
        }
        _ => {}
    }
    match params.format_scores {
        Some(_) if !params.system.is_some_and(System::has_format_scores) => {
            let issue = ParamIssue::new("format_scores", "belongs to `system: search-r1-v0.3`");
            issues.push(issue.with_help("remove it, or write that system"));
        }
        Some(FormatScores { structure, answer, retrieval }) => issues.extend(unmet(&[
            (structure.is_finite(), "format_scores.structure", "is not a finite number"),
            (answer.is_finite(), "format_scores.answer", "is not a finite number"),
            (retrieval.is_finite(), "format_scores.retrieval", "is not a finite number"),
        ])),
        None => {}
    }
    issues
}

/// Judges the rollouts of a table, or single ones.
pub(crate) struct Judge {
    params: RewardParams,
    counter: Counter,
}

impl BlockingKernel for Judge {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows(PORT)?;
        let mut statistics = Statistics::default();
        let mut written = false;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let columns = Columns::of(&batch, &self.params.sum)?;
            let rollouts = from_batch::<Trajectory>(&batch)?;
            let judged: Vec<Result<Rewarded, Unfit>> = rollouts
                .par_iter()
                .enumerate()
                .map_init(Memo::default, |memo, (index, row)| self.judge(row, index, &columns, memo))
                .collect();
            let (mut fit, mut rewards, mut rejects) = (Vec::new(), Vec::new(), Vec::new());
            // Statistics are added up in the order of the rows, so that they do not depend on the threads.
            for (index, (row, judged)) in rollouts.iter().zip(judged).enumerate() {
                match judged {
                    Ok(reward) => {
                        statistics.add(&row.question_id, &reward);
                        fit.push(index as u32);
                        rewards.push(reward);
                    }
                    Err(unfit) => rejects.push(unfit.reject(row.id.clone())),
                }
            }
            statistics.rejected += rejects.len();
            if !fit.is_empty() {
                let fit = take_record_batch(&batch, &UInt32Array::from(fit))?;
                outputs.write(PORT, &with_rewards(&fit, &rewards)?)?;
                written = true;
            }
            outputs.write_rows("rejects", &rejects)?;
        }
        // An output without rows has the columns of the rewards, too.
        if !written {
            outputs.write(PORT, &with_rewards(&RecordBatch::new_empty(rows.schema.clone()), &[])?)?;
        }
        statistics.report(outputs);
        Ok(())
    }
}

impl Judge {
    /// Opens a reward for single rollouts, whose params have no issues.
    ///
    /// # Errors
    /// Fails if a term reads a column, or the tokenizer cannot be read.
    pub(crate) fn open(params: RewardParams, context: &Context) -> Result<Self, OperatorError> {
        if params.sum.iter().any(|term| matches!(term, Term::Column(_))) {
            return Err(OperatorError::pipeline("`reward`: a single rollout has no other columns: remove `column`"));
        }
        let counter = params.count.counter(context)?;
        Ok(Self { params, counter })
    }

    /// Returns the reward and its parts.
    ///
    /// # Errors
    /// Returns why the rollout cannot be judged.
    pub(crate) fn reward(&self, row: &Trajectory) -> Result<Rewarded, String> {
        self.judge(row, 0, &Columns::default(), &mut Memo::default()).map_err(|unfit| unfit.message)
    }

    fn judge(&self, row: &Trajectory, index: usize, columns: &Columns, memo: &mut Memo) -> Result<Rewarded, Unfit> {
        let transcript = Transcript::from(row);
        // It counts tokens of all thoughts, so only for rewards that have it.
        let short = if self.params.rewards_short_thoughts() { self.short_think(&transcript, memo)? } else { 0.0 };
        let rewarded = if let Some(system) = self.params.system {
            // The rules of a system read the tags of its own format.
            if !system.protocols().contains(&row.protocol.as_str()) {
                let wanted = system.protocols().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let found = &row.protocol;
                let message = format!("the reward reads rollouts of protocol {wanted}; this one is of `{found}`");
                return Err(Unfit::new(message));
            }
            let rule = self.params.rule.unwrap_or_default();
            let golden = system.read(rule, &row.golden_answers);
            require_answers(golden, |answer| system.has_text(answer))?;
            let format_scores = self.params.format_scores.unwrap_or_default();
            let reward = system.reward(rule, &transcript, golden, &Given { short_think: short, format_scores });
            let parts = reward.parts.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            Rewarded { value: reward.value(), parts }
        } else {
            term::add_up(&self.params.sum, row, &transcript, short, index, columns)?
        };
        // A product of a large weight and a large column may overflow.
        if rewarded.value.is_finite() {
            return Ok(rewarded);
        }
        Err(Unfit::new("the sum of its terms is not a finite number"))
    }

    fn short_think(&self, transcript: &Transcript, memo: &mut Memo) -> Result<f64, Unfit> {
        let score = ShortThink::default().score(transcript, |text: &str| {
            let mut tally = self.counter.tally(memo, text);
            let count = tally.count(text);
            tally.fault().map_or(Ok(count), Err)
        });
        score.map_err(|fault| Unfit::new(format!("the tokenizer cannot encode its thoughts: {fault}")))
    }
}

/// Adds the columns `reward` and `reward_parts`.
fn with_rewards(batch: &RecordBatch, rewards: &[Rewarded]) -> Result<RecordBatch, OperatorError> {
    let (mut names, mut values, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for reward in rewards {
        for (name, value) in &reward.parts {
            names.push(name.as_str());
            values.push(*value);
        }
        lengths.push(reward.parts.len());
    }
    let (names, values): (ArrayRef, ArrayRef) =
        (Arc::new(StringArray::from(names)), Arc::new(Float64Array::from(values)));
    let parts = RecordBatch::try_from_iter_with_nullable([("name", names, false), ("value", values, false)])?;
    let rewards = Arc::new(Float64Array::from_iter_values(rewards.iter().map(|reward| reward.value)));
    let columns: [(&str, ArrayRef, bool); 2] =
        [("reward", rewards, false), ("reward_parts", lists(parts, lengths), false)];
    with_all(batch, &RecordBatch::try_from_iter_with_nullable(columns)?)
}

#[cfg(test)]
mod tests;
