//! Gradients of a student's weights as vectors of f32.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};
use searchmill_kernels::training::{self, LayerGradients, MapGradients};

use crate::decoder::{DecoderConfig, adapter_tensor_name, layer_name};
use crate::training::optimizer::{Gradients, add};
use crate::training::student::Student;

/// Returns a 0 for each number of a weight; nothing if it is frozen, or if the model lacks it.
fn zeros(is_trained: bool, weight: Option<&Tensor>) -> Vec<f32> {
    match weight {
        Some(weight) if is_trained => vec![0.0; weight.elem_count()],
        _ => Vec::new(),
    }
}

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
        // All weights are trained, or only adapters.
        let full = student.trains_head();
        let decoder = &student.decoder;
        let mut layers = Vec::with_capacity(decoder.blocks.len());
        for block in &decoder.blocks {
            let norms = block.head_norms.as_ref();
            layers.push(LayerGradients {
                input_norm: zeros(full, Some(&block.input_norm)),
                feed_norm: zeros(full, Some(&block.feed_norm)),
                query_norm: zeros(full, norms.map(|norms| &norms.0)),
                key_norm: zeros(full, norms.map(|norms| &norms.1)),
                maps: std::array::from_fn(|number| {
                    let linear = &block.maps[number];
                    let adapter = linear.adapter.as_ref();
                    MapGradients {
                        weight: zeros(full, Some(&linear.weight)),
                        bias: zeros(full, linear.bias.as_ref()),
                        a: zeros(!full, adapter.map(|adapter| &adapter.a)),
                        b: zeros(!full, adapter.map(|adapter| &adapter.b)),
                    }
                }),
            });
        }
        let tied = decoder.config().tie_word_embeddings;
        Self {
            embedding: zeros(full, Some(&decoder.embedding)),
            norm: zeros(full, Some(&decoder.norm)),
            head: zeros(full && !tied, Some(decoder.head_weight())),
            layers,
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
            training::add(&mut self.embedding[*token as usize * width..][..width], row);
        }
    }

    fn named(self, config: &DecoderConfig) -> BTreeMap<String, Vec<f32>> {
        let mut all = BTreeMap::from([
            ("model.embed_tokens.weight".to_owned(), self.embedding),
            ("model.norm.weight".to_owned(), self.norm),
            ("lm_head.weight".to_owned(), self.head),
        ]);
        for (number, layer) in self.layers.into_iter().enumerate() {
            all.insert(layer_name(number, "input_layernorm.weight"), layer.input_norm);
            all.insert(layer_name(number, "post_attention_layernorm.weight"), layer.feed_norm);
            all.insert(layer_name(number, "self_attn.q_norm.weight"), layer.query_norm);
            all.insert(layer_name(number, "self_attn.k_norm.weight"), layer.key_norm);
            for ((part, ..), map) in config.projections().into_iter().zip(layer.maps) {
                let module = layer_name(number, part);
                all.insert(format!("{module}.weight"), map.weight);
                all.insert(format!("{module}.bias"), map.bias);
                all.insert(adapter_tensor_name(&module, "lora_A"), map.a);
                all.insert(adapter_tensor_name(&module, "lora_B"), map.b);
            }
        }
        // Frozen weights, and parts that the family lacks.
        all.retain(|_, numbers| !numbers.is_empty());
        all
    }

    /// Adds the gradients to those of earlier passes, in the order of the weights' names.
    pub(super) fn add_to(self, student: &Student, gradients: &mut Gradients) -> Result<()> {
        let mut named = self.named(student.decoder.config());
        for (name, var) in &student.weights {
            let Some(numbers) = named.remove(name) else { continue };
            add(gradients, name, Tensor::from_vec(numbers, var.shape(), var.device())?)?;
        }
        Ok(())
    }
}
