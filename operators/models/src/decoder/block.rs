//! The block shared by all families: attention and a gated feed-forward network, each with a norm before it and a residual
//! connection.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::attention::attend;
use super::cache::KvCache;
use super::config::{DecoderConfig, layer_name};
use super::layout::Layout;
use super::linear::Linear;
use super::ops;
use super::rope::Angles;
use super::weights::Tensors;

/// A layer.
#[derive(Clone)]
pub struct Block {
    pub input_norm: Tensor,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    /// Weights of the norms of queries and keys.
    pub head_norms: Option<(Tensor, Tensor)>,
    pub feed_norm: Tensor,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    number: usize,
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
        let input_norm = take("input_layernorm.weight")?;
        let feed_norm = take("post_attention_layernorm.weight")?;
        let head_norms = if config.traits().query_key_norm {
            Some((take("self_attn.q_norm.weight")?, take("self_attn.k_norm.weight")?))
        } else {
            None
        };
        let mut linear = |name: &str| -> Result<Linear> {
            Ok(Linear {
                weight: take(&format!("{name}.weight"))?,
                bias: take(&format!("{name}.bias")).ok(),
                adapter: None,
            })
        };
        Ok(Self {
            query: linear("self_attn.q_proj")?,
            key: linear("self_attn.k_proj")?,
            value: linear("self_attn.v_proj")?,
            output: linear("self_attn.o_proj")?,
            gate: linear("mlp.gate_proj")?,
            up: linear("mlp.up_proj")?,
            down: linear("mlp.down_proj")?,
            input_norm,
            feed_norm,
            head_norms,
            number,
            heads: config.num_attention_heads,
            shared: config.key_value_heads(),
            size: config.head_dimensions(),
            eps: config.rms_norm_eps,
        })
    }

    /// Computes the layer's output (rows × columns × dimensions, like the input).
    pub(super) fn forward(
        &self,
        hidden: &Tensor,
        layout: &Layout,
        angles: &Arc<Angles>,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let (rows, columns, width) = hidden.dims3()?;
        let hidden = hidden.reshape((rows * columns, width))?;
        let attended = self.attend(&ops::rms_norm(&hidden, &self.input_norm, self.eps)?, layout, angles, cache)?;
        let hidden = (hidden + attended)?;
        let fed = self.feed(&ops::rms_norm(&hidden, &self.feed_norm, self.eps)?, layout)?;
        (hidden + fed)?.reshape((rows, columns, width))
    }

    fn attend(
        &self,
        tokens: &Tensor,
        layout: &Layout,
        angles: &Arc<Angles>,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let dropout = layout.dropout.as_ref();
        let split = |linear: &Linear, heads: usize| {
            linear.forward(tokens, dropout)?.reshape((layout.rows, layout.columns, heads, self.size))
        };
        let (mut queries, mut keys) = (split(&self.query, self.heads)?, split(&self.key, self.shared)?);
        let mut values = split(&self.value, self.shared)?;
        if let Some((of_queries, of_keys)) = &self.head_norms {
            queries = ops::rms_norm(&queries, of_queries, self.eps)?;
            keys = ops::rms_norm(&keys, of_keys, self.eps)?;
        }
        queries = ops::rotate(&queries, angles)?;
        keys = ops::rotate(&keys, angles)?;
        if let Some(cache) = cache {
            (keys, values) = cache.extend(self.number, layout, (keys, values))?;
        }
        let heard = attend(&queries, &keys, &values, layout)?;
        self.output.forward(&heard.reshape((layout.rows * layout.columns, self.heads * self.size))?, dropout)
    }

    fn feed(&self, tokens: &Tensor, layout: &Layout) -> Result<Tensor> {
        let dropout = layout.dropout.as_ref();
        let (gate, up) = (self.gate.forward(tokens, dropout)?, self.up.forward(tokens, dropout)?);
        self.down.forward(&ops::silu_product(&gate, &up)?, dropout)
    }

    /// Returns the linear maps with their names within the layer, in the order of the network.
    pub(super) fn linears(&self) -> [(&'static str, &Linear); 7] {
        [
            ("self_attn.q_proj", &self.query),
            ("self_attn.k_proj", &self.key),
            ("self_attn.v_proj", &self.value),
            ("self_attn.o_proj", &self.output),
            ("mlp.gate_proj", &self.gate),
            ("mlp.up_proj", &self.up),
            ("mlp.down_proj", &self.down),
        ]
    }

    /// Returns the linear map with a name within the layer.
    pub(super) fn linear_mut(&mut self, name: &str) -> Option<&mut Linear> {
        match name {
            "self_attn.q_proj" => Some(&mut self.query),
            "self_attn.k_proj" => Some(&mut self.key),
            "self_attn.v_proj" => Some(&mut self.value),
            "self_attn.o_proj" => Some(&mut self.output),
            "mlp.gate_proj" => Some(&mut self.gate),
            "mlp.up_proj" => Some(&mut self.up),
            "mlp.down_proj" => Some(&mut self.down),
            _ => None,
        }
    }

    /// Returns the weights by their names within the layer, without adapters.
    pub(super) fn weights(&self) -> Vec<(String, &Tensor)> {
        let mut all = vec![
            ("input_layernorm.weight".to_owned(), &self.input_norm),
            ("post_attention_layernorm.weight".to_owned(), &self.feed_norm),
        ];
        if let Some((of_queries, of_keys)) = &self.head_norms {
            all.push(("self_attn.q_norm.weight".to_owned(), of_queries));
            all.push(("self_attn.k_norm.weight".to_owned(), of_keys));
        }
        for (name, linear) in self.linears() {
            all.push((format!("{name}.weight"), &linear.weight));
            all.extend(linear.bias.as_ref().map(|bias| (format!("{name}.bias"), bias)));
        }
        all
    }
}
