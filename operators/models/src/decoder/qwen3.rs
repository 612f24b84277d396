//! Qwen3, dense (Qwen team 2025, arXiv:2505.09388): each head's queries and keys are normalised, there are no biases
//! unless the configuration asks for them.

use super::family::Traits;

/// What its blocks have.
pub(super) fn traits(attention_bias: bool) -> Traits {
    Traits {
        query_key_value_bias: attention_bias,
        output_bias: attention_bias,
        feed_forward_bias: false,
        query_key_norm: true,
    }
}
