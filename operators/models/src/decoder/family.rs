//! The families of decoders, and the differences between their blocks.

use serde::{Deserialize, Serialize};

/// A family of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3 (dense).
    Qwen3,
    /// Llama 2 and 3, and models with their layout.
    Llama,
}

/// Features of a family's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Biases of the query, key and value projections.
    pub(crate) query_key_value_bias: bool,
    /// Bias of the attention's output projection.
    pub(crate) output_bias: bool,
    /// Biases of the feed-forward projections.
    pub(crate) feed_forward_bias: bool,
    /// Root-mean-square norms of each head's queries and keys.
    pub(crate) query_key_norm: bool,
}

impl Traits {
    pub(super) fn has_bias(self, projection: &str) -> bool {
        match projection {
            "self_attn.o_proj" => self.output_bias,
            name if name.starts_with("self_attn.") => self.query_key_value_bias,
            _ => self.feed_forward_bias,
        }
    }
}
