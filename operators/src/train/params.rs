//! Parameters of `train`.

use schemars::JsonSchema;
use searchmill_engine::operator::{allow_names, named_or_tagged};
use searchmill_models::decoder::DecoderConfig;
use searchmill_models::device::Precision;
use searchmill_models::training::example::Truncation;
use searchmill_models::training::optimizer::AdamParams;
use searchmill_models::training::schedule::Decay;
use searchmill_models::training::student::{LoraParams, Tuning};
use serde::{Deserialize, Serialize};

use super::backend::Backend;

/// How the model is taught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Method {
    /// Supervised fine-tuning: the tokens that the examples' model wrote become likelier.
    #[default]
    Sft,
}

/// Which weights come out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Keep {
    /// Those after the last step.
    #[default]
    Last,
    /// Those with the lowest loss on what is held out.
    Best,
}

/// Parameters of `train`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct TrainParams {
    /// Who trains: `candle` (this process, on the CPU), `swift` (ms-swift, with its options `swift: {…}`), or any other program:
    /// `exec: {program: [python3], arguments: [train.py, --out, "{output}"]}`. Programs of others see the GPUs that the
    /// node has (`resources: {gpus: 1}`).
    #[serde(deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub(crate) backend: Backend,
    /// How the model is taught.
    pub(crate) method: Method,
    /// Which weights learn: `full` or `{lora: {rank: 16, alpha: 32}}`.
    pub(crate) tuning: Tuning,
    /// The numbers that are computed with: `f32`, or `bf16`: what a GPU (`resources: {gpus: 1}`) is best at. What
    /// learns is kept in f32 in any case.
    pub(crate) dtype: Precision,
    /// Passes over the examples; 2.5 ends in the middle of the third.
    pub(crate) epochs: f64,
    /// Most steps, if that is fewer.
    pub(crate) max_steps: Option<u64>,
    /// Examples of one step of the optimiser.
    #[schemars(range(min = 1))]
    pub(crate) batch_size: usize,
    /// Tokens of one forward and backward pass, filling up included: a batch with more is taken in several passes whose
    /// gradients add up. Bounds the memory.
    #[schemars(range(min = 1))]
    pub(crate) pass_tokens: usize,
    /// Longest example in tokens.
    #[schemars(range(min = 2))]
    pub(crate) max_length: usize,
    /// What becomes of longer ones.
    pub(crate) truncation: Truncation,
    /// A column of numbers that says how much each example's tokens count; without it all count the same.
    pub(crate) weight_column: Option<String>,
    /// How much the tokens count that the model did not write (prompts and tool responses), beside 1 for those that it did.
    /// Models from scratch learn to copy names sooner with some of it (Shi et al. 2024, arXiv:2405.14394, on when loss over
    /// instructions helps). What is held out is measured without.
    pub(crate) context_weight: f64,
    /// The highest learning rate.
    pub(crate) learning_rate: f64,
    /// How it falls.
    pub(crate) schedule: Decay,
    /// Share of the steps in which it rises from 0.
    pub(crate) warmup_ratio: f64,
    /// Settings of AdamW.
    pub(crate) optimizer: AdamParams,
    /// Gradients whose norm is greater are scaled down to it; `null`: never.
    pub(crate) max_grad_norm: Option<f64>,
    /// Share of the questions whose examples are held out for measuring, where there is no input `eval`.
    pub(crate) eval_share: f64,
    /// Steps between measurements on what is held out; the last step is always measured.
    #[schemars(range(min = 1))]
    pub(crate) eval_steps: u64,
    /// End after so many measurements without a lower loss.
    pub(crate) early_stopping: Option<u32>,
    /// Which weights come out.
    pub(crate) keep: Keep,
    /// Hold the activations of one layer at a time and compute them again on the way back: a third slower, for longer
    /// texts in the same memory. Changes no byte of the result.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) checkpointing: bool,
    /// Steps between saved states, from which a killed training goes on. Changes no byte of the result.
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
            context_weight: 0.0,
            learning_rate: 1e-4,
            schedule: Decay::Cosine,
            warmup_ratio: 0.05,
            optimizer: AdamParams::default(),
            max_grad_norm: Some(1.0),
            eval_share: 0.0,
            eval_steps: 50,
            early_stopping: None,
            keep: Keep::Last,
            checkpointing: false,
            save_steps: 100,
        }
    }
}

impl TrainParams {
    pub(super) fn lora(&self) -> Option<&LoraParams> {
        match &self.tuning {
            Tuning::Full => None,
            Tuning::Lora(params) => Some(params),
        }
    }

    /// Share of the adapter's inputs that is dropped, if any.
    pub(super) fn dropout(&self) -> Option<f64> {
        self.lora().map(|lora| lora.dropout).filter(|share| *share > 0.0)
    }
}

/// Numbers that learn.
pub(super) fn trained_parameters(params: &TrainParams, config: &DecoderConfig) -> u64 {
    let Some(lora) = params.lora() else { return config.parameter_count() as u64 };
    let meant = lora.targets();
    let maps = config.projections().into_iter().filter(|(name, ..)| meant.iter().any(|target| name.ends_with(target)));
    let layer: u64 = maps.map(|(_, outputs, inputs)| (lora.rank * (outputs + inputs)) as u64).sum();
    config.num_hidden_layers as u64 * layer
}
