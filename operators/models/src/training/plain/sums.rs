//! Gradients of a student's weights as vectors of f32.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};
use searchmill_kernels::training::{LayerGradients, MapGradients};

use crate::decoder::{Block, DecoderConfig, Linear, adapter_tensor_name, layer_name};
use crate::training::optimizer::{Gradients, add};
use crate::training::student::Student;

/// Gradients by weight; those of frozen weights are empty.
pub(super) struct Sums {
    embedding: Vec<f32>,
    pub(super) norm: Vec<f32>,
    /// Empty if the embedding's weights also compute the logits.
    head: Vec<f32>,
    pub(super) layers: Vec<LayerGradients>,
}

impl Sums {
    pub(super) fn new(student: &Student) -> Self {
        let full = student.trains_head();
        let zeros = |tensor: &Tensor| if full { vec![0.0; tensor.elem_count()] } else { Vec::new() };
        let low = |tensor: &Tensor| if full { Vec::new() } else { vec![0.0; tensor.elem_count()] };
        let map = |linear: &Linear| MapGradients {
            weight: zeros(&linear.weight),
            bias: linear.bias.as_ref().map(zeros).unwrap_or_default(),
            a: linear.adapter.as_ref().map(|adapter| low(&adapter.a)).unwrap_or_default(),
            b: linear.adapter.as_ref().map(|adapter| low(&adapter.b)).unwrap_or_default(),
        };
        let layer = |block: &Block| LayerGradients {
            input_norm: zeros(&block.input_norm),
            feed_norm: zeros(&block.feed_norm),
            query_norm: block.head_norms.as_ref().map(|norms| zeros(&norms.0)).unwrap_or_default(),
            key_norm: block.head_norms.as_ref().map(|norms| zeros(&norms.1)).unwrap_or_default(),
            maps: std::array::from_fn(|number| map(&block.maps[number])),
        };
        let decoder = &student.decoder;
        let tied = decoder.config().tie_word_embeddings;
        Self {
            embedding: zeros(&decoder.embedding),
            norm: zeros(&decoder.norm),
            head: if tied { Vec::new() } else { zeros(decoder.head_weight()) },
            layers: decoder.blocks.iter().map(layer).collect(),
        }
    }

    pub(super) fn head_or_embedding(&mut self) -> &mut [f32] {
        if self.head.is_empty() { &mut self.embedding } else { &mut self.head }
    }

    pub(super) fn embed(&mut self, tokens: &[u32], gradient: &[f32], width: usize) {
        if self.embedding.is_empty() {
            return;
        }
        for (token, row) in tokens.iter().zip(gradient.chunks_exact(width)) {
            let sum = &mut self.embedding[*token as usize * width..][..width];
            sum.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
    }

    fn named(self, config: &DecoderConfig) -> BTreeMap<String, Vec<f32>> {
        let mut all = BTreeMap::from([
            ("model.embed_tokens.weight".to_owned(), self.embedding),
            ("model.norm.weight".to_owned(), self.norm),
            ("lm_head.weight".to_owned(), self.head),
        ]);
        for (number, layer) in self.layers.into_iter().enumerate() {
            let name = |part: &str| layer_name(number, part);
            all.insert(name("input_layernorm.weight"), layer.input_norm);
            all.insert(name("post_attention_layernorm.weight"), layer.feed_norm);
            all.insert(name("self_attn.q_norm.weight"), layer.query_norm);
            all.insert(name("self_attn.k_norm.weight"), layer.key_norm);
            for ((part, ..), map) in config.projections().into_iter().zip(layer.maps) {
                let module = name(part);
                all.insert(format!("{module}.weight"), map.weight);
                all.insert(format!("{module}.bias"), map.bias);
                all.insert(adapter_tensor_name(&module, "lora_A"), map.a);
                all.insert(adapter_tensor_name(&module, "lora_B"), map.b);
            }
        }
        all.retain(|_, numbers| !numbers.is_empty());
        all
    }

    /// Adds the gradients to those of earlier passes.
    pub(super) fn add_to(self, student: &Student, gradients: &mut Gradients) -> Result<()> {
        let mut named = self.named(student.decoder.config());
        for (name, var) in &student.weights {
            let Some(numbers) = named.remove(name) else { continue };
            add(gradients, name, Tensor::from_vec(numbers, var.shape(), var.device())?)?;
        }
        Ok(())
    }
}
