//! Recorded tokens of rollouts: columns, figures and the rules of their params.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use searchmill_agent::policy::PolicyParams;
use searchmill_engine::operator::{ParamIssue, RowOutput};
use searchmill_schemas::{Message, RecordedTokens, TokenSpan, Trajectory, from_batch};
use serde::{Deserialize, Serialize};

use crate::shared::issues::refused;

/// Additional columns of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// `tokens` and `sampling`. `tokens` is a list in the order in which the model read and wrote: `message` (position in
    /// `messages`), `branch`, `sampled` (whether the model wrote them), `ids`, and for sampled tokens `logprobs` (natural
    /// logarithms, one per id; otherwise null). End-of-turn tokens are included. The concatenated `ids` of a branch are
    /// what the model saw; every sampled token stands in one branch as sampled. A choice of passages (`searchlm`) is a
    /// branch of its own. `sampling`: `temperature`, `top_p`,
    /// `top_k`, `other` (JSON), `revision` (of the model, null if unknown), and `logprobs`: `processed` (of the
    /// distribution that was sampled from, after temperature, `top_k` and `top_p`) or `raw` (the model's own). Policy
    /// `model` records `processed`. Policy `endpoint` asks the server (`return_token_ids`, `logprobs`: vLLM,
    /// `searchmill serve model`).
    Tokens,
}

/// Rollouts without recorded tokens.
pub(crate) const UNRECORDED: &str = "rollouts without recorded tokens";
/// Rollouts whose tokens are the most probable ones.
pub(crate) const GREEDY: &str = "rollouts at temperature 0";
/// Rollouts whose tokens were not sampled from the whole distribution.
pub(crate) const FROM_SOME: &str = "rollouts sampled from some of the tokens";

/// Returns what keeps reinforcement learning from learning the tokens of rollouts.
pub(super) fn variant(recording: bool, policy: &PolicyParams) -> Option<&'static str> {
    let (temperature, top_p, top_k) = policy.sampled_with().unwrap_or((1.0, 1.0, 0));
    if !recording {
        Some(UNRECORDED)
    // All rollouts of a question are then the same, and none is better than another.
    } else if temperature <= 0.0 {
        Some(GREEDY)
    } else {
        (top_p < 1.0 || top_k > 0).then_some(FROM_SOME)
    }
}

/// Names of the figures: rollouts, sampled tokens, additional branches, rollouts with additional branches.
const RECORDED: &str = "rollouts_with_tokens";
const SAMPLED: &str = "sampled_tokens";
const BRANCHES: &str = "additional_branches";
const FORKED: &str = "forked_rollouts";

/// Returns the figures of a rollout with recorded tokens.
pub(super) fn figures(output: &RowOutput) -> Vec<(&'static str, f64)> {
    let mut figures = Vec::new();
    for (_, batch) in &output.batches {
        let Ok(Some(recorded)) = RecordedTokens::from_batch(batch) else { continue };
        let rollouts = from_batch::<Trajectory>(batch).unwrap_or_default();
        for (rollout, recorded) in rollouts.iter().zip(recorded) {
            let sampled = recorded.tokens.iter().filter(|span| span.sampled).map(|span| span.ids.len());
            let branches = additional(&recorded.tokens, &rollout.messages);
            figures.extend([
                (RECORDED, 1.0),
                (SAMPLED, sampled.sum::<usize>() as f64),
                (BRANCHES, branches as f64),
                (FORKED, f64::from(branches > 0)),
            ]);
        }
    }
    figures
}

/// Number of branches in which the conversation was begun again; those of asides do not count.
fn additional(spans: &[TokenSpan], messages: &[Message]) -> usize {
    let mut conversation = BTreeSet::new();
    for span in spans {
        let message = usize::try_from(span.message).ok().and_then(|index| messages.get(index));
        if !message.is_some_and(Message::is_aside) {
            conversation.insert(span.branch);
        }
    }
    // The first branch is the conversation as it began.
    conversation.len().saturating_sub(1)
}

/// Returns the text about the sums of these figures, if tokens were recorded.
pub(super) fn summary(sums: &BTreeMap<&'static str, f64>) -> Option<String> {
    let [rollouts, sampled, branches, forked] =
        [RECORDED, SAMPLED, BRANCHES, FORKED].map(|name| sums.get(name).copied().unwrap_or(0.0));
    if rollouts == 0.0 {
        return None;
    }
    let forks = if branches == 0.0 {
        "earlier turns were never rewritten".to_owned()
    } else {
        format!("rewritten history: {branches} additional branches in {forked} rollouts")
    };
    Some(format!("recorded tokens: {sampled} sampled in {rollouts} rollouts; {forks}"))
}

/// Returns issues of `record` and `rewritten_history` (whether they are given) with the policy.
pub(super) fn issues(recording: bool, rewriting: bool, policy: &PolicyParams) -> Vec<ParamIssue> {
    let (no_effect, help) = ("has no effect without `record: tokens`", "add `record: tokens`, or leave it out");
    let mut issues = refused(&[(rewriting && !recording, "rewritten_history", no_effect, help)]);
    match policy {
        PolicyParams::Evidence(_) if recording => {
            let issue = ParamIssue::new("record", "the policy `evidence` has no tokens");
            issues.push(issue.with_help("use the policy `model` or `endpoint`, or leave `record` out"));
        }
        PolicyParams::Endpoint(endpoint) if recording => issues.extend(endpoint.check_recording()),
        PolicyParams::Endpoint(endpoint) if endpoint.logprobs.is_some() => {
            issues.push(ParamIssue::new("policy.endpoint.logprobs", no_effect));
        }
        _ => {}
    }
    issues
}
