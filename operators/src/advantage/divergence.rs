//! The divergence of sampled tokens from a reference model, paid out of the reward.

use arrow::array::RecordBatch;
use schemars::JsonSchema;
use searchmill_engine::operator::{Context, Inputs, OperatorError, Outputs};
use searchmill_models::decoder::Decoder;
use searchmill_models::device::{Compute, Precision};
use searchmill_models::training::example::Example;
use searchmill_models::training::policy_gradient::Estimator;
use searchmill_models::training::recorded::{Recording, Sequence};
use searchmill_models::training::scored::Judge;
use searchmill_schemas::RecordedTokens;
use serde::{Deserialize, Serialize};

/// Port of the reference model.
pub(super) const REFERENCE: &str = "reference";

/// Tokens per forward pass.
const PASS_TOKENS: usize = 8192;

/// What a sampled token pays for its divergence from the reference model.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct RewardKl {
    /// Its factor (0.0001 in R1-Searcher, 0.001 in Search-R1's PPO).
    pub(crate) coefficient: f64,
    /// How it is estimated from the probability with which the token was sampled (k1 in verl and OpenRLHF).
    #[serde(default = "k1")]
    pub(crate) estimator: Estimator,
}

fn k1() -> Estimator {
    Estimator::K1
}

/// Returns how records are read for the reference model.
pub(super) fn recording(inputs: &Inputs) -> Result<Recording, OperatorError> {
    let config = Decoder::read_config(&inputs.tree(REFERENCE)?.path)?;
    Ok(Recording { vocabulary: config.vocab_size, max_length: config.max_position_embeddings })
}

/// Returns the recorded tokens of a batch.
pub(super) fn recorded(batch: &RecordBatch) -> Result<Vec<RecordedTokens>, OperatorError> {
    match RecordedTokens::from_batch(batch)? {
        Some(recorded) => Ok(recorded),
        None => Err(OperatorError::data("`kl`: the rollouts have no recorded tokens")
            .with_help("write `record: tokens` below `with:` of the node that rolls out, or leave `kl` out")),
    }
}

/// Returns what each sampled token of each rollout pays, in the order of the record.
pub(super) fn costs(
    kl: RewardKl,
    sequences: &[Vec<Sequence>],
    inputs: &Inputs,
    context: &Context,
) -> Result<Vec<Vec<f64>>, OperatorError> {
    // Full precision: a divergence is a small difference of log-probabilities, which bf16 would round away.
    let compute = Compute::leased(context, Precision::F32)?;
    context.progress().log(&format!("device: {}", compute.name()));
    let examples: Vec<Example> = sequences.iter().flatten().map(|sequence| sequence.example.clone()).collect();
    let folder = &inputs.tree(REFERENCE)?.path;
    let judge =
        Judge { folder, adapter: None, port: REFERENCE, own: None, pass_tokens: PASS_TOKENS, compute: &compute };
    let mut scores = judge.log_probabilities(&examples)?.into_iter();
    let mut costs = Vec::with_capacity(sequences.len());
    for sequences in sequences {
        let count = sequences.iter().map(|sequence| sequence.places.len()).sum();
        let mut of_rollout = vec![0.0; count];
        for (Sequence { example, places, .. }, scores) in sequences.iter().zip(scores.by_ref()) {
            let Some(sampled) = &example.sampled else { continue };
            let learnt = (0..example.tokens.len()).filter(|at| example.learnt[*at]);
            // The first token of a sequence has no probability: nothing stands before it.
            let predicted = learnt.zip(places).filter(|(at, _)| *at > 0);
            for ((at, place), reference) in predicted.zip(scores) {
                let estimate = kl.estimator.of(sampled.log_probabilities[at], reference).value;
                of_rollout[*place] = kl.coefficient * f64::from(estimate);
            }
        }
        costs.push(of_rollout);
    }
    Ok(costs)
}

/// Reports the mean divergence per token.
pub(super) fn report(kl: RewardKl, costs: &[Vec<f64>], outputs: &mut Outputs) {
    let count = costs.iter().map(Vec::len).sum::<usize>().max(1);
    let paid = costs.iter().flatten().sum::<f64>() / count as f64;
    // The mean is recovered from what was paid, so with a coefficient of 0 it is unknown.
    if kl.coefficient > 0.0 {
        outputs.figure("reference_kl", paid / kl.coefficient);
    }
    outputs.summary(&format!("paid for the divergence from `{REFERENCE}`: {paid:.6} a token\n"));
}
