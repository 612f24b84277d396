//! Qwen3, dense (Qwen team 2025, arXiv:2505.09388): queries and keys of each head are normalised; biases only if the
//! configuration has them.

use super::family::Traits;

/// Features of its blocks.
pub(super) fn traits(attention_bias: bool) -> Traits {
    Traits {
        query_key_value_bias: attention_bias,
        output_bias: attention_bias,
        feed_forward_bias: false,
        query_key_norm: true,
    }
}
