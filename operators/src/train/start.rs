//! The model that a training starts from, and its reference: a whole model, or a base with a LoRA adapter.

use std::path::PathBuf;

use searchmill_engine::operator::{Context, Inputs, OperatorError, ParamIssue};
use searchmill_models::device::Compute;
use searchmill_models::inference::{ModelSource, NAME_BOTH, WHOLE, lone_adapter};
use searchmill_models::training::student::{Student, Tuning};

pub(super) const MODEL: &str = "model";

/// A model's folder, and that of its adapter.
pub(super) struct Start {
    pub(super) folder: PathBuf,
    pub(super) adapter: Option<PathBuf>,
}

impl Start {
    /// Reads what is bound to a port.
    ///
    /// # Errors
    /// If it is no model, an adapter alone, or two different models: an adapter of the second one would later be taken for
    /// one of the first.
    pub(super) fn of(port: &str, inputs: &Inputs, context: &Context) -> Result<Self, OperatorError> {
        let trees = inputs.trees(port);
        let (folder, adapter) = ModelSource::default().folders(&trees, context)?;
        // `[base, base]` is one model, as in the first round of a loop.
        if adapter.is_none() && trees.iter().any(|tree| tree.path != folder) {
            let message = format!("`{port}` names two different models, and no adapter");
            return Err(OperatorError::pipeline(message).with_help(
                "name one model, or a base and an adapter of it: `model: [base, adapter]`; a loop that trains an adapter \
                 starts from the base: `carry: {policy: base}`; a model trained with `merge: true` is named alone",
            ));
        }
        Ok(Self { folder, adapter })
    }

    /// Loads the student: with the adapter, or a new one.
    ///
    /// # Errors
    /// If the adapter is not what `tuning` describes, or the optimiser's state cannot be that of a new adapter.
    pub(super) fn student(
        &self,
        tuning: &Tuning,
        has_state: bool,
        seed: u64,
        compute: &Compute,
    ) -> Result<Student, OperatorError> {
        match (&self.adapter, tuning) {
            (Some(adapter), Tuning::Lora(lora)) => Student::going_on(&self.folder, adapter, lora, compute),
            (Some(_), Tuning::Full) => {
                let message = "`model` names an adapter, and `tuning: full` trains no adapter";
                Err(OperatorError::pipeline(message)
                    .with_help("write `tuning: {lora: …}` as it was trained, or name a whole model (`merge: true`)"))
            }
            // Its moments would be those of other numbers.
            (None, Tuning::Lora(_)) if has_state => {
                let message = "`state` is the optimiser of an adapter, and `model` names no adapter: a new one begins";
                Err(OperatorError::pipeline(message).with_help(format!(
                    "{NAME_BOTH}, where the adapter was trained without `merge`; or leave `state` out"
                )))
            }
            _ => Student::load(&self.folder, tuning, seed, compute),
        }
    }
}

/// Reports a model that is an adapter alone, or more than a model and an adapter, as far as it is known before the run.
/// `merges`: whether the training merges its adapter, so that its own model, in the next round of a loop, is whole.
pub(super) fn issues(kinds: &[Option<&str>], merges: bool) -> Vec<ParamIssue> {
    if kinds.len() > 2 {
        return vec![ParamIssue::new("", format!("`model` names {} models", kinds.len())).with_help(NAME_BOTH)];
    }
    if kinds.iter().filter(|kind| **kind == Some(WHOLE)).count() < 2 {
        return lone_adapter(kinds);
    }
    let help = if merges {
        "name one: with `merge: true` the model of an earlier training is whole, so name that alone (in a loop: \
         `model: policy`), or leave `merge` out"
    } else {
        "name one; of a node with a matrix, one variant (`student@layers=2`), or give this node the matrix too"
    };
    vec![ParamIssue::new("", "`model` names two whole models").with_help(help)]
}
