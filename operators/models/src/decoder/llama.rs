//! Llama 2 and 3 (Grattafiori et al. 2024, arXiv:2407.21783), and models with their layout.

use super::family::Traits;

/// Features of its blocks.
pub(super) fn traits(attention_bias: bool, mlp_bias: bool) -> Traits {
    Traits {
        query_key_value_bias: attention_bias,
        output_bias: attention_bias,
        feed_forward_bias: mlp_bias,
        query_key_norm: false,
    }
}
