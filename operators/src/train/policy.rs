//! Reinforcement learning and preferences: rollouts or pairs in, the reference model, and the optimiser's state in and out.

use searchmill_engine::operator::{Accept, Arity, Inputs, OperatorError, Outputs, Ports, TreeKind};
use searchmill_models::device::Compute;
use searchmill_models::on_path;
use searchmill_models::training::example::Example;
use searchmill_models::training::fit::Fitted;
use searchmill_models::training::scored::Judge;
use searchmill_models::training::state::save_optimizer;
use searchmill_schemas::RecordKind;

use super::params::{Method, TrainParams};
use super::start::Start;

pub(super) const ROLLOUTS: &str = "trajectories";
pub(super) const PAIRS: &str = "pairs";
pub(super) const REFERENCE: &str = "reference";
pub(super) const STATE: &str = "state";

/// The file of the optimiser's state.
const OPTIMIZER: &str = "optimizer.safetensors";

/// Differences of log-probabilities above this are no rounding: the rollouts are of another model.
const LARGEST_GAP: f64 = 0.01;

/// Kinds of the rows of preference training.
pub(super) const PAIR_KINDS: [RecordKind; 2] = [RecordKind::Example, RecordKind::Pair];

/// Adds the state and the reference model.
pub(super) fn more_inputs(ports: Ports, about_reference: &'static str) -> Ports {
    state_input(ports).input_of(REFERENCE, Accept::Tree(TreeKind::Model), Arity::AnyNumber, about_reference)
}

pub(super) fn state_input(ports: Ports) -> Ports {
    let about = "State of the optimiser to go on from: the output `state` of the training that made `model`.";
    ports.input_of(STATE, Accept::Tree(TreeKind::Files), Arity::Optional, about)
}

pub(super) fn outputs(ports: Ports) -> Ports {
    ports.tree_out(STATE, TreeKind::Files, "State of the optimiser after the last step: `optimizer.safetensors`.")
}

/// Computes the log-probabilities of the learnt tokens under the reference model: the connected one, or, for pairs, the model
/// that the training starts from.
pub(super) fn measure_reference(
    params: &TrainParams,
    examples: &mut [Example],
    start: &Start,
    connected: Option<&Start>,
    compute: &Compute,
) -> Result<(), OperatorError> {
    let reference = match connected {
        Some(reference) => reference,
        None if params.method == Method::Dpo => start,
        None => return Ok(()),
    };
    // Nothing is held out unless the params say so; a model is not loaded for that.
    if examples.is_empty() {
        return Ok(());
    }
    let (folder, adapter) = (reference.folder.as_path(), reference.adapter.as_deref());
    let (own, pass_tokens) = (Some(start.folder.as_path()), params.pass_tokens);
    let judge = Judge { folder, adapter, port: REFERENCE, own, pass_tokens, compute };
    let scores = judge.log_probabilities(examples)?;
    for (example, found) in examples.iter_mut().zip(scores) {
        if let Some(paired) = &mut example.paired {
            paired.reference = found.iter().map(|number| f64::from(*number)).sum();
        }
        if let Some(sampled) = &mut example.sampled {
            let mut by_position = vec![0.0; example.tokens.len()];
            // The first token is predicted by none, so it has no log-probability.
            let learnt = (1..example.tokens.len()).filter(|at| example.learnt[*at]);
            for (position, number) in learnt.zip(found) {
                by_position[position] = number;
            }
            sampled.reference = Some(by_position);
        }
    }
    Ok(())
}

/// Returns the state of the optimiser to start from, if one is connected.
pub(super) fn optimizer_state(inputs: &Inputs) -> Result<Option<Vec<u8>>, OperatorError> {
    let Some(folder) = inputs.trees(STATE).first().copied() else { return Ok(None) };
    match std::fs::read(folder.path.join(OPTIMIZER)) {
        Ok(state) => Ok(Some(state)),
        Err(error) => Err(OperatorError::data(format!("`{STATE}` has no readable `{OPTIMIZER}`: {error}"))
            .with_help("connect the output `state` of a training: `grpo`, or `sft` with `optimizer_state: true`")),
    }
}

/// Writes the state of the optimiser, and warns if the model is not the one that sampled.
pub(super) fn publish_state(fitted: &Fitted, outputs: &mut Outputs) -> Result<(), OperatorError> {
    let path = outputs.tree(STATE)?.join(OPTIMIZER);
    std::fs::write(&path, save_optimizer(&fitted.optimizer)?).map_err(on_path(&path))?;
    // Only before the first update of the weights is the model in training the one that sampled.
    if let Some(policy) = fitted.progressed.steps.first().and_then(|step| step.policy) {
        let gap = policy.gap;
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
