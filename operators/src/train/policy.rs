//! Reinforcement learning: rollouts with recorded tokens in, the reference model, and the optimiser's state in and out.

use searchmill_engine::operator::{Accept, Arity, Inputs, OperatorError, Outputs, Ports, TreeKind};
use searchmill_models::decoder::{Decoder, DecoderConfig, failed};
use searchmill_models::device::Compute;
use searchmill_models::training::example::{Example, Read};
use searchmill_models::training::fit::Fitted;
use searchmill_models::training::objective::Sft;
use searchmill_models::training::recorded::RolloutReader;
use searchmill_models::training::state::save_optimizer;
use searchmill_models::training::step;
use searchmill_models::training::student::{Student, Tuning};
use searchmill_schemas::RecordKind;

use super::params::TrainParams;

const ROLLOUTS: &str = "trajectories";
pub(super) const REFERENCE: &str = "reference";
const STATE: &str = "state";

/// The file of the optimiser's state.
const OPTIMIZER: &str = "optimizer.safetensors";

/// Default of `advantage_column`.
const ADVANTAGE: &str = "advantage";

/// Differences of log-probabilities above this are no rounding: the rollouts are of another model.
const LARGEST_GAP: f64 = 0.01;

pub(super) fn inputs(with_base: impl Fn(Ports) -> Ports) -> Ports {
    let about = "Rollouts of `model` with recorded tokens (`record: tokens`) and advantages.";
    with_base(Ports::new().rows_in(ROLLOUTS, &[RecordKind::Trajectory], about))
        .input_of(
            STATE,
            Accept::Tree(TreeKind::Files),
            Arity::Optional,
            "State of the optimiser to go on from: the output `state` of the training that made `model`.",
        )
        .input_of(
            REFERENCE,
            Accept::Tree(TreeKind::Model),
            Arity::Optional,
            "The model from which the divergence is measured (`policy_loss.kl`).",
        )
}

pub(super) fn outputs(ports: Ports) -> Ports {
    ports.tree_out(STATE, TreeKind::Files, "State of the optimiser after the last step: `optimizer.safetensors`.")
}

impl TrainParams {
    /// Reads the rollouts to train on.
    pub(super) fn read_rollouts(&self, inputs: &Inputs, config: &DecoderConfig) -> Result<Read, OperatorError> {
        let reader = RolloutReader {
            vocabulary: config.vocab_size,
            max_length: self.max_length.min(config.max_position_embeddings),
            advantage: self.advantage_column.as_deref().unwrap_or(ADVANTAGE),
        };
        reader.read(inputs.rows(ROLLOUTS)?)
    }
}

/// Computes the log-probabilities of the sampled tokens by the reference model, if one is connected.
pub(super) fn measure_reference(
    examples: &mut [Example],
    inputs: &Inputs,
    pass_tokens: usize,
    compute: &Compute,
) -> Result<(), OperatorError> {
    let Some(folder) = inputs.trees(REFERENCE).first().copied() else { return Ok(()) };
    let vocabulary = Decoder::read_config(&folder.path)?.vocab_size;
    let largest = examples.iter().flat_map(|example| &example.tokens).max().copied().unwrap_or(0);
    if largest as usize >= vocabulary {
        let message =
            format!("the rollouts have token {largest}, but the vocabulary of `{REFERENCE}` ends at {vocabulary}");
        return Err(OperatorError::data(message).with_help("the reference and the model need the same tokenizer"));
    }
    let model = Student::load(&folder.path, &Tuning::Full, 0, compute)?;
    let all: Vec<usize> = (0..examples.len()).collect();
    let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
    let found = step::evaluate(&model, &all, examples, &Sft::default(), pass_tokens.max(longest)).map_err(failed)?;
    for (number, log_probabilities) in found.log_probabilities {
        let example = &mut examples[number];
        let mut by_place = vec![0.0; example.tokens.len()];
        let places = (1..example.tokens.len()).filter(|at| example.learnt[*at]);
        for (place, found) in places.zip(log_probabilities) {
            by_place[place] = found;
        }
        if let Some(sampled) = &mut example.sampled {
            sampled.reference = Some(by_place);
        }
    }
    Ok(())
}

/// Returns the state of the optimiser to start from, if one is connected.
pub(super) fn optimizer_state(inputs: &Inputs) -> Result<Option<Vec<u8>>, OperatorError> {
    let Some(folder) = inputs.trees(STATE).first().copied() else { return Ok(None) };
    let path = folder.path.join(OPTIMIZER);
    let read = std::fs::read(&path).map_err(|error| {
        OperatorError::data(format!("`{STATE}` has no readable `{OPTIMIZER}`: {error}"))
            .with_help("connect the output `state` of a training with `method: grpo`")
    });
    read.map(Some)
}

/// Writes the state of the optimiser, and warns if the model is not the one that sampled.
pub(super) fn publish_state(fitted: &Fitted, outputs: &mut Outputs) -> Result<(), OperatorError> {
    std::fs::write(outputs.tree(STATE)?.join(OPTIMIZER), save_optimizer(&fitted.optimizer)?)?;
    let first = fitted.progressed.steps.first().and_then(|step| step.policy);
    if let Some(gap) = first.map(|policy| policy.gap) {
        outputs.figure("first_logprob_gap", gap);
        if gap > LARGEST_GAP {
            outputs.summary(&format!(
                "At the first step, a log-probability differs by {gap:.3} from the one that the token was sampled with: the \
                 rollouts are of another model, or of a server that computes in another way.\n"
            ));
        }
    }
    Ok(())
}
