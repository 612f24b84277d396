//! Qwen2 and Qwen2.5 (Qwen team 2024, arXiv:2412.15115): biases of queries, keys and values.

use super::family::Traits;

/// Features of its blocks.
pub(super) fn traits() -> Traits {
    Traits { query_key_value_bias: true, output_bias: false, feed_forward_bias: false, query_key_norm: false }
}
