//! Parameters of `train`.

use schemars::JsonSchema;
use searchmill_engine::operator::{allow_names, named_or_tagged};
use searchmill_models::device::Precision;
use searchmill_models::training::example::Truncation;
use searchmill_models::training::fit::{FitSettings, Keep};
use searchmill_models::training::learning_rate::Decay;
use searchmill_models::training::optimizer::AdamParams;
use searchmill_models::training::policy_gradient::PolicyLoss;
use searchmill_models::training::preference::PreferenceLoss;
use searchmill_models::training::student::{LoraParams, Tuning};
use serde::{Deserialize, Serialize};

use super::backend::Backend;

/// What the training minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Method {
    /// Supervised fine-tuning: raises the probability of the tokens that the model of the examples wrote.
    #[default]
    Sft,
    /// Whatever the program of `backend: exec` does, for example GRPO with verl, OpenRLHF or ms-swift. It gets the
    /// input `rows` (any table) instead of `examples`.
    External,
    /// Reinforcement learning from rollouts with recorded tokens and advantages: the clipped objective of PPO and GRPO.
    Grpo,
    /// The same objective. REINFORCE++ differs in its advantages (`advantage` with `method: reinforce++`).
    #[serde(rename = "reinforce++")]
    ReinforcePlusPlus,
    /// Direct preference optimisation from pairs of rollouts.
    Dpo,
}

impl Method {
    /// Whether it learns from rollouts with advantages.
    pub(super) fn learns_from_rewards(self) -> bool {
        matches!(self, Self::Grpo | Self::ReinforcePlusPlus)
    }
}

/// Parameters of `train`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct TrainParams {
    /// The trainer: `candle` (this process), `swift` (ms-swift, with its options `swift: {…}`), or any other program:
    /// `exec: {program: [python3], arguments: [train.py, --out, "{output}"]}`. External programs see the GPUs of the
    /// node (`resources: {gpus: 1}`).
    #[serde(deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub(crate) backend: Backend,
    /// What the training minimises.
    pub(crate) method: Method,
    /// Which weights are trained: `full` or `{lora: {rank: 16, alpha: 32}}`.
    pub(crate) tuning: Tuning,
    /// Precision of the computation: `f32`, or `bf16` (fastest on a GPU: `resources: {gpus: 1}`). Trained weights are
    /// always kept in f32.
    pub(crate) dtype: Precision,
    /// Passes over the examples; 2.5 stops in the middle of the third.
    pub(crate) epochs: f64,
    /// Limit of the number of steps (`null`: as many as `epochs` needs).
    pub(crate) max_steps: Option<u64>,
    /// Examples per optimiser step; with `method: dpo`, pairs.
    #[schemars(range(min = 1))]
    pub(crate) batch_size: usize,
    /// Tokens per forward/backward pass, padding included. A larger batch is split into several passes whose
    /// gradients are added. Bounds the memory.
    #[schemars(range(min = 1))]
    pub(crate) pass_tokens: usize,
    /// Maximum length of an example in tokens.
    #[schemars(range(min = 2))]
    pub(crate) max_length: usize,
    /// What to do with longer examples.
    pub(crate) truncation: Truncation,
    /// A numeric column with the loss weight of each example (`null`: all have weight 1).
    pub(crate) weight_column: Option<String>,
    /// The loss of `method: grpo` and `method: reinforce++`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy_loss: Option<PolicyLoss>,
    /// The loss of `method: dpo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) preference_loss: Option<PreferenceLoss>,
    /// The column of advantages: a number for each rollout, or a list of numbers, one for each token that the model
    /// sampled (`null`: `token_advantages` if it is there, else `advantage`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advantage_column: Option<String>,
    /// Loss weight of prompt and tool tokens (model tokens have weight 1). A small weight helps models trained from
    /// scratch to copy names sooner (Shi et al. 2024, arXiv:2405.14394, on when loss over instructions helps).
    /// Evaluation ignores these tokens.
    pub(crate) context_weight: f64,
    /// Peak learning rate.
    pub(crate) learning_rate: f64,
    /// Decay of the learning rate after the warm-up.
    pub(crate) schedule: Decay,
    /// Share of the steps in which the learning rate rises from 0.
    pub(crate) warmup_ratio: f64,
    /// Steps that `schedule` and `warmup_ratio` span, instead of the steps of this training: in a loop, the steps of all
    /// rounds. Steps of the input `state` count; after the last one the rate of `cosine` and `linear` is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(crate) schedule_steps: Option<u64>,
    /// Settings of AdamW.
    pub(crate) optimizer: AdamParams,
    /// With `method: sft`: give the training the input and output `state`, the optimiser's moments, which the other methods
    /// always have. Another training, or the next round of a loop, can go on from them. They are twice as large as what is
    /// trained.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) optimizer_state: bool,
    /// Gradients with a greater norm are scaled down to it (`null`: never).
    pub(crate) max_grad_norm: Option<f64>,
    /// Share of the questions whose examples are held out for evaluation. Unused with the input `eval`.
    pub(crate) eval_share: f64,
    /// Steps between evaluations on the held-out examples; the last step is always evaluated.
    #[schemars(range(min = 1))]
    pub(crate) eval_steps: u64,
    /// Stop after this many evaluations without a lower loss (`null`: never).
    pub(crate) early_stopping: Option<u32>,
    /// Which checkpoint to output: `last` or `best`.
    pub(crate) keep: Keep,
    /// Steps whose weights are outputs, too: `[50, 100]` gives `checkpoint_50` and `checkpoint_100`, models like `model`.
    /// The backend `candle` holds them in memory until the end. ms-swift then keeps all that it saves
    /// (`backend.swift.save_steps`); a program must leave them in folders with the step in their names (`checkpoint-50`). If
    /// an external training ends earlier than a step, its last weights stand for it, with a warning.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) checkpoints: Vec<u64>,
    /// Hold the activations of one layer at a time and recompute them in the backward pass: a third slower, for
    /// longer texts in the same memory. Does not change the result.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) checkpointing: bool,
    /// Steps between saved states, from which a killed training resumes. Does not change the result.
    #[schemars(range(min = 1), extend("x-searchmill-key" = false))]
    pub(crate) save_steps: u64,
}

impl Default for TrainParams {
    fn default() -> Self {
        Self {
            backend: Backend::Candle,
            method: Method::Sft,
            tuning: Tuning::default(),
            dtype: Precision::default(),
            epochs: 3.0,
            max_steps: None,
            batch_size: 16,
            pass_tokens: 8192,
            max_length: 8192,
            truncation: Truncation::Delete,
            weight_column: None,
            policy_loss: None,
            preference_loss: None,
            advantage_column: None,
            context_weight: 0.0,
            learning_rate: 1e-4,
            schedule: Decay::Cosine,
            warmup_ratio: 0.05,
            schedule_steps: None,
            optimizer: AdamParams::default(),
            optimizer_state: false,
            max_grad_norm: Some(1.0),
            eval_share: 0.0,
            eval_steps: 50,
            early_stopping: None,
            keep: Keep::Last,
            checkpoints: Vec::new(),
            checkpointing: false,
            save_steps: 100,
        }
    }
}

/// Name of the output with the weights after a step.
pub(super) fn checkpoint(step: u64) -> String {
    format!("checkpoint_{step}")
}

impl TrainParams {
    /// Whether the optimiser goes on from a state, and leaves one.
    pub(super) fn has_state(&self) -> bool {
        self.method.learns_from_rewards() || self.method == Method::Dpo || self.optimizer_state
    }

    pub(super) fn lora(&self) -> Option<&LoraParams> {
        match &self.tuning {
            Tuning::Full => None,
            Tuning::Lora(params) => Some(params),
        }
    }

    /// Settings of our own training loop.
    pub(super) fn fit_settings(&self) -> FitSettings {
        FitSettings {
            epochs: self.epochs,
            max_steps: self.max_steps,
            batch_size: self.batch_size,
            pass_tokens: self.pass_tokens,
            checkpointing: self.checkpointing,
            learning_rate: self.learning_rate,
            decay: self.schedule,
            warmup_ratio: self.warmup_ratio,
            schedule_steps: self.schedule_steps,
            optimizer: self.optimizer,
            max_grad_norm: self.max_grad_norm,
            eval_steps: self.eval_steps,
            early_stopping: self.early_stopping,
            keep: self.keep,
            checkpoints: self.checkpoints.clone(),
            save_steps: self.save_steps,
        }
    }
}
