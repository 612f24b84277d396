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
        let mut take = |name: &str| {
            let name = layer_name(number, name);
            tensors.remove(&name).ok_or_else(|| candle_core::Error::Msg(format!("missing tensor `{name}`")))
        };
        let head_norms = if config.query_key_norm() {
            Some((take("self_attn.q_norm.weight")?, take("self_attn.k_norm.weight")?))
        } else {
            None
        };
        Ok(Self {
            input_norm: take("input_layernorm.weight")?,
            feed_norm: take("post_attention_layernorm.weight")?,
            head_norms,
            maps: config
                .projections()
                .into_iter()
                .map(|(name, ..)| {
                    let (weight, bias) = (take(&format!("{name}.weight"))?, take(&format!("{name}.bias")).ok());
                    Ok(Linear { weight, bias, adapter: None })
                })
                .collect::<Result<_>>()?,
            heads: config.num_attention_heads,
            shared: config.key_value_heads(),
            size: config.head_dimensions(),
            eps: config.rms_norm_eps,
        })
    }

    /// Computes the layer's output (rows × columns × dimensions, like the input).
    pub(crate) fn forward(&self, hidden: &Tensor, layout: &Layout, angles: &Angles) -> Result<Tensor> {
        let (rows, columns, width) = hidden.dims3()?;
        let hidden = hidden.reshape((rows * columns, width))?;
        let attended = self.attend(&ops::rms_norm(&hidden, &self.input_norm, self.eps)?, layout, angles)?;
        let hidden = (hidden + attended)?;
        let fed = self.feed(&ops::rms_norm(&hidden, &self.feed_norm, self.eps)?, layout)?;
        (hidden + fed)?.reshape((rows, columns, width))
    }

    fn attend(&self, tokens: &Tensor, layout: &Layout, angles: &Angles) -> Result<Tensor> {
        let dropout = layout.dropout.as_ref();
        let split = |map: usize, heads: usize| {
            self.maps[map].forward(tokens, dropout)?.reshape((layout.rows, layout.columns, heads, self.size))
        };
        let (mut queries, mut keys) = (split(QUERY, self.heads)?, split(KEY, self.shared)?);
        let values = split(VALUE, self.shared)?;
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
    pub(super) fn norms(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let of_heads = self.head_norms.iter();
        let of_heads = of_heads
            .flat_map(|(queries, keys)| [("self_attn.q_norm.weight", queries), ("self_attn.k_norm.weight", keys)]);
        let of_layer =
            [("input_layernorm.weight", &self.input_norm), ("post_attention_layernorm.weight", &self.feed_norm)];
        of_layer.into_iter().chain(of_heads)
    }
}
