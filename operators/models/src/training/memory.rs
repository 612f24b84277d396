//! Estimate of the memory that a training needs.

use searchmill_engine::operator::OperatorError;

use super::batch::logits_at_once;
use super::student::Tuning;
use crate::decoder::{DecoderConfig, mib};
use crate::device::Compute;

/// Attention scores held in memory at a time by tensor operations.
const SCORES: u64 = 1 << 27;

/// Memory of a training in bytes.
pub struct TrainingNeed {
    weights: u64,
    optimizer: u64,
    activations: u64,
}

impl TrainingNeed {
    /// Estimates the need of passes of `tokens` tokens.
    pub fn of(config: &DecoderConfig, tuning: &Tuning, tokens: usize, checkpointing: bool, compute: &Compute) -> Self {
        let all = config.parameter_count() as u64;
        let number = compute.dtype.size_in_bytes() as u64;
        // Trained weights are kept in f32.
        let weights = if matches!(tuning, Tuning::Full) { 4 * all } else { number * all };
        let optimizer = 4 * 4 * tuning.trained_parameters(config);
        let tokens = tokens as u64;
        let chunk = (logits_at_once(&compute.device) as u64).max(16 * config.vocab_size as u64);
        let scores = if compute.is_plain() { 0 } else { 5 * tokens * tokens * config.num_attention_heads as u64 };
        let layers = config.num_hidden_layers as u64;
        let heads = (config.num_attention_heads + 2 * config.key_value_heads()) * config.head_dimensions();
        // What the forward pass stores of a layer for the backward pass, in numbers per token: its inputs, norms and sums,
        // queries to values twice, and the feed-forward network.
        let layer = (6 * config.hidden_size + 3 * heads + 4 * config.intermediate_size) as u64;
        let stored = if checkpointing { config.hidden_size as u64 * layers + 2 * layer } else { layers * layer };
        let activations = number * tokens * stored + 4 * (3 * chunk + scores.min(5 * SCORES));
        Self { weights, optimizer, activations }
    }

    /// Compares the need with the available bytes, if they are known.
    ///
    /// # Errors
    /// When the need is greater.
    pub fn check(&self, available: Option<u64>) -> Result<(), OperatorError> {
        let total = self.weights + self.optimizer + self.activations;
        let Some(available) = available.filter(|available| total > *available) else { return Ok(()) };
        Err(OperatorError::machine(format!(
            "the training needs about {} MiB (weights {}, gradients and optimiser {}, activations {}), but {} MiB are available",
            mib(total),
            mib(self.weights),
            mib(self.optimizer),
            mib(self.activations),
            mib(available)
        ))
        .with_help("set `checkpointing: true`, lower `pass_tokens` or `max_length`, or train a `lora` adapter"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::student::LoraParams;
    use super::*;

    #[test]
    fn too_little_memory_is_an_error_with_the_parts_of_the_need() {
        let config = DecoderConfig::parse(
            br#"{"model_type":"qwen3","vocab_size":151936,"hidden_size":2560,"intermediate_size":9728,"num_hidden_layers":36,
                "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"tie_word_embeddings":true}"#,
            "Qwen3-4B",
        )
        .unwrap();
        let need = |tuning: &Tuning| TrainingNeed::of(&config, tuning, 1000, true, &Compute::cpu());
        let full = need(&Tuning::Full);
        let error = full.check(Some(24 << 30)).unwrap_err();
        assert!(
            error.message.contains("needs about") && error.message.contains("24576 MiB are available"),
            "{}",
            error.message
        );
        assert!(full.check(None).is_ok());
        assert!(need(&Tuning::Lora(LoraParams::default())).check(Some(24 << 30)).is_ok());
    }
}
