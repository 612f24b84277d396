//! The block shared by all families: attention and a gated feed-forward network, each with a norm before it and a residual
//! connection.

use candle_core::{Result, Tensor};
use searchmill_kernels::training::{DOWN, GATE, KEY, OUTPUT, QUERY, UP, VALUE};

use super::config::{DecoderConfig, layer_name};
use super::layout::Layout;
use super::linear::Linear;
use super::ops;
use super::rope::Angles;
use super::tensor_attention::attend;
use super::weights::Tensors;

/// A layer.
#[derive(Clone)]
pub struct Block {
    pub input_norm: Tensor,
    /// Weights of the norms of queries and keys.
    pub head_norms: Option<(Tensor, Tensor)>,
    pub feed_norm: Tensor,
    /// The linear maps in the order of [`DecoderConfig::projections`].
    pub maps: Vec<Linear>,
    heads: usize,
    shared: usize,
    size: usize,
    eps: f64,
}

impl Block {
    /// Takes the checked tensors of a layer out of `tensors`.
    pub(super) fn new(config: &DecoderConfig, number: usize, tensors: &mut Tensors) -> Result<Self> {
        let mut head_norms = None;
        // Only Qwen3 has them.
        if config.query_key_norm() {
            let queries = take(tensors, number, "self_attn.q_norm.weight")?;
            head_norms = Some((queries, take(tensors, number, "self_attn.k_norm.weight")?));
        }
        let mut maps = Vec::new();
        for (name, ..) in config.projections() {
            let weight = take(tensors, number, &format!("{name}.weight"))?;
            // Whether there must be one is checked before.
            let bias = tensors.remove(&layer_name(number, &format!("{name}.bias")));
            maps.push(Linear { weight, bias, adapter: None });
        }
        Ok(Self {
            input_norm: take(tensors, number, "input_layernorm.weight")?,
            feed_norm: take(tensors, number, "post_attention_layernorm.weight")?,
            head_norms,
            maps,
            heads: config.num_attention_heads,
            shared: config.key_value_heads(),
            size: config.head_dimensions(),
            eps: config.rms_norm_eps,
        })
    }

    /// Computes the layer's output (rows × columns × dimensions, like the input).
    pub(crate) fn forward(&self, hidden: &Tensor, layout: &Layout, angles: &Angles) -> Result<Tensor> {
        // As a matrix of tokens: only attention needs to know rows.
        let (rows, columns, width) = hidden.dims3()?;
        let hidden = hidden.reshape((rows * columns, width))?;
        let attended = self.attend(&ops::rms_norm(&hidden, &self.input_norm, self.eps)?, layout, angles)?;
        let hidden = (hidden + attended)?;
        let fed = self.feed(&ops::rms_norm(&hidden, &self.feed_norm, self.eps)?, layout)?;
        (hidden + fed)?.reshape((rows, columns, width))
    }

    fn attend(&self, tokens: &Tensor, layout: &Layout, angles: &Angles) -> Result<Tensor> {
        let dropout = layout.dropout.as_ref();
        let (rows, columns, size) = (layout.rows, layout.columns, self.size);
        let queries = self.maps[QUERY].forward(tokens, dropout)?;
        let mut queries = queries.reshape((rows, columns, self.heads, size))?;
        let keys = self.maps[KEY].forward(tokens, dropout)?;
        let mut keys = keys.reshape((rows, columns, self.shared, size))?;
        let values = self.maps[VALUE].forward(tokens, dropout)?.reshape((rows, columns, self.shared, size))?;
        if let Some((of_queries, of_keys)) = &self.head_norms {
            queries = ops::rms_norm(&queries, of_queries, self.eps)?;
            keys = ops::rms_norm(&keys, of_keys, self.eps)?;
        }
        let heard = attend(&ops::rotate(&queries, angles)?, &ops::rotate(&keys, angles)?, &values, layout)?;
        let heard = heard.reshape((layout.rows * layout.columns, self.heads * self.size))?;
        self.maps[OUTPUT].forward(&heard, dropout)
    }

    fn feed(&self, tokens: &Tensor, layout: &Layout) -> Result<Tensor> {
        let dropout = layout.dropout.as_ref();
        let (gate, up) = (self.maps[GATE].forward(tokens, dropout)?, self.maps[UP].forward(tokens, dropout)?);
        self.maps[DOWN].forward(&(gate.silu()? * up)?, dropout)
    }

    /// Returns the weights of the norms by their names within the layer.
    pub(super) fn norms(&self) -> Vec<(&'static str, &Tensor)> {
        let mut norms =
            vec![("input_layernorm.weight", &self.input_norm), ("post_attention_layernorm.weight", &self.feed_norm)];
        if let Some((queries, keys)) = &self.head_norms {
            norms.extend([("self_attn.q_norm.weight", queries), ("self_attn.k_norm.weight", keys)]);
        }
        norms
    }
}

/// Takes a tensor of a layer.
fn take(tensors: &mut Tensors, layer: usize, name: &str) -> Result<Tensor> {
    let name = layer_name(layer, name);
    match tensors.remove(&name) {
        Some(tensor) => Ok(tensor),
        None => candle_core::bail!("missing tensor `{name}`"),
    }
}
