//! Formulas of advantages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How advantages follow from rewards.
///
/// - `grpo`: `(reward − mean) / (deviation + epsilon)` over the rollouts of the question (DeepSeekMath, arXiv 2402.03300).
/// - `dr_grpo`: `reward − mean` (arXiv 2503.20783).
/// - `rloo`: `reward − mean of the other rollouts` (arXiv 2402.14740).
/// - `reinforce++`: the reward, whitened over all tokens that the model wrote: `(reward − mean) / √(variance + 1e-8)`, with
///   the variance of a sample (arXiv 2501.03262; with `kl`, its KL term too). verl's version stops at the first token of an
///   observation, so that turns before a search learn nothing; here, all tokens of the model count.
/// - `reinforce++-baseline`: `reward − mean` of the question, then whitened in the same way (verl,
///   `reinforce_plus_plus_baseline`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Method {
    Grpo {
        /// The deviation of the rewards of a question: `sample` (divided by n − 1: TRL, verl, R1-Searcher) or `population`
        /// (divided by n: Agent Lightning).
        #[serde(default)]
        deviation: Deviation,
        /// What is added to the deviation (1e-4 as in TRL; 1e-6 in verl and Search-R1, 1e-9 in R1-Searcher).
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    DrGrpo,
    Rloo,
    #[serde(rename = "reinforce++")]
    ReinforcePlusPlus,
    #[serde(rename = "reinforce++-baseline")]
    ReinforcePlusPlusBaseline,
}

fn epsilon() -> f64 {
    1e-4
}

impl Default for Method {
    fn default() -> Self {
        Self::Grpo { deviation: Deviation::default(), epsilon: epsilon() }
    }
}

impl Method {
    /// Whether it depends on how many tokens the model wrote.
    pub(super) fn weighs_tokens(self) -> bool {
        matches!(self, Self::ReinforcePlusPlus | Self::ReinforcePlusPlusBaseline)
    }
}

/// The deviation of the rewards of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deviation {
    /// Divided by the number of rollouts less one.
    #[default]
    Sample,
    /// Divided by the number of rollouts.
    Population,
}

/// The advantage of a rollout that is the only one of its question. `reinforce++` compares all rollouts and does not need
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Alone {
    /// 0: nothing is learnt from it.
    #[default]
    Zero,
    /// Its reward (with `grpo`, divided by 1 + epsilon), as in verl.
    Reward,
}

/// Added to a variance before its root is taken (verl, `masked_whiten`).
const WHITENING: f64 = 1e-8;

/// A rollout with a reward.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rollout {
    /// Its question, as a number.
    pub(super) group: u32,
    pub(super) reward: f64,
    /// Number of tokens that the model wrote.
    pub(super) tokens: u64,
}

/// Returns the rows of each group.
pub(super) fn groups(rollouts: &[Rollout]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (row, rollout) in rollouts.iter().enumerate() {
        groups.resize_with(groups.len().max(rollout.group as usize + 1), Vec::new);
        groups[rollout.group as usize].push(row);
    }
    // A question all of whose rollouts are rejects has a number, but no members.
    groups.retain(|members| !members.is_empty());
    groups
}

/// Returns the advantage of each rollout.
pub(super) fn advantages(method: Method, alone: Alone, rollouts: &[Rollout]) -> Vec<f64> {
    let values = values(method, alone, rollouts);
    if method.weighs_tokens() { whitened(&values, rollouts) } else { values }
}

/// Returns the advantage of each token of each rollout, of which `paid` holds what it pays: the whitened return, without
/// discount (OpenRLHF, `compute_reward` and `get_cumulative_returns`).
pub(super) fn token_advantages(method: Method, alone: Alone, rollouts: &[Rollout], paid: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut returns: Vec<Vec<f64>> = Vec::with_capacity(rollouts.len());
    for (value, costs) in values(method, alone, rollouts).into_iter().zip(paid) {
        let mut of_rollout = vec![value; costs.len()];
        // From the end: a token pays for itself and for all that follow it.
        let mut left = 0.0;
        for (number, cost) in of_rollout.iter_mut().zip(costs).rev() {
            left += cost;
            *number -= left;
        }
        returns.push(of_rollout);
    }
    if let Some(scale) = Scale::of(returns.iter().flatten().map(|value| (*value, 1))) {
        for value in returns.iter_mut().flatten() {
            *value = scale.applied(*value);
        }
    }
    returns
}

/// Returns what each rollout earned, compared with the others of its question if the method does so.
fn values(method: Method, alone: Alone, rollouts: &[Rollout]) -> Vec<f64> {
    let mut advantages: Vec<f64> = rollouts.iter().map(|rollout| rollout.reward).collect();
    // `reinforce++` has no baseline per question: whitening over all tokens is its only one.
    if !matches!(method, Method::ReinforcePlusPlus) {
        for members in groups(rollouts) {
            let rewards: Vec<f64> = members.iter().map(|row| rollouts[*row].reward).collect();
            for (row, advantage) in members.into_iter().zip(compared(method, alone, &rewards)) {
                advantages[row] = advantage;
            }
        }
    }
    advantages
}

/// Returns the advantages of the rollouts of a question.
fn compared(method: Method, alone: Alone, rewards: &[f64]) -> Vec<f64> {
    let count = rewards.len() as f64;
    if let [reward] = rewards {
        let of_reward = match method {
            // verl takes a mean of 0 and a deviation of 1 for a question with one rollout.
            Method::Grpo { epsilon, .. } => reward / (1.0 + epsilon),
            _ => *reward,
        };
        return vec![if alone == Alone::Reward { of_reward } else { 0.0 }];
    }
    // Rounding may make the mean of equal rewards another number.
    if rewards.iter().all(|reward| *reward == rewards[0]) {
        return vec![0.0; rewards.len()];
    }
    let mean = rewards.iter().sum::<f64>() / count;
    let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
    let divisor = match method {
        Method::Grpo { deviation: Deviation::Sample, epsilon } => (squares / (count - 1.0)).sqrt() + epsilon,
        Method::Grpo { deviation: Deviation::Population, epsilon } => (squares / count).sqrt() + epsilon,
        // The mean of the others: (reward − mean) · n / (n − 1).
        Method::Rloo => (count - 1.0) / count,
        _ => 1.0,
    };
    rewards.iter().map(|reward| (reward - mean) / divisor).collect()
}

/// Whitens values over tokens: each token of a rollout has the value of the rollout. With fewer than two tokens in all, the
/// values stay.
fn whitened(values: &[f64], rollouts: &[Rollout]) -> Vec<f64> {
    let of_tokens = values.iter().zip(rollouts).map(|(value, rollout)| (*value, rollout.tokens));
    let Some(scale) = Scale::of(of_tokens) else { return values.to_vec() };
    values.iter().map(|value| scale.applied(*value)).collect()
}

/// Mean and deviation over tokens.
struct Scale {
    mean: f64,
    deviation: f64,
}

impl Scale {
    /// Returns those of values with their numbers of tokens, unless there are fewer than two tokens.
    fn of(values: impl Iterator<Item = (f64, u64)> + Clone) -> Option<Self> {
        let count: u64 = values.clone().map(|(_, tokens)| tokens).sum();
        // The variance of a sample divides by count − 1.
        if count < 2 {
            return None;
        }
        let mean = values.clone().map(|(value, tokens)| value * tokens as f64).sum::<f64>() / count as f64;
        let squares: f64 = values.map(|(value, tokens)| (value - mean).powi(2) * tokens as f64).sum();
        Some(Self { mean, deviation: (squares / (count - 1) as f64 + WHITENING).sqrt() })
    }

    fn applied(&self, value: f64) -> f64 {
        (value - self.mean) / self.deviation
    }
}
