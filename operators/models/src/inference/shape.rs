//! Sizes of networks and caches.

use crate::decoder::DecoderConfig;

/// Sizes of a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Key/value heads.
    pub(super) shared: usize,
    pub(super) size: usize,
    pub(super) hidden: usize,
    pub(super) wide: usize,
    pub(super) vocabulary: usize,
}

impl Shape {
    pub(super) fn of(config: &DecoderConfig) -> Self {
        Self {
            layers: config.num_hidden_layers,
            heads: config.num_attention_heads,
            shared: config.key_value_heads(),
            size: config.head_dimensions(),
            hidden: config.hidden_size,
            wide: config.intermediate_size,
            vocabulary: config.vocab_size,
        }
    }
}
