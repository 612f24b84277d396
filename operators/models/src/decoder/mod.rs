//! Decoders on candle: Qwen2, Qwen2.5, Qwen3 and Llama, for training and for scoring, on any device.
//!
//! All families share one network and its blocks ([`block`]); [`config`] describes the differences. All operations are
//! differentiable ([`ops`], [`tensor_attention`]), rows may be packed ([`layout`]), and logits cover all positions.
//! [`crate::inference`] generates text with the same weights. In f32 on the CPU, the loops of `searchmill_kernels` take
//! the weights and compute in place of this network.
//!
//! candle's fast softmax, norms and rope lose the gradient silently. Operations composed of others replace them where
//! weights are learnt. candle's fast kernels serve generation and encoders on devices, which learn nothing.
//!
//! A token sees a range of keys. One pair of numbers per token therefore describes padding and packing. Attention never
//! holds all scores (`tensor_attention`, `made`): it works block by block and has its own backward pass.

mod adapter;
mod block;
mod config;
mod dropout;
mod layout;
mod linear;
mod ops;
mod rope;
mod tensor_attention;
mod weights;
#[cfg(test)]
pub mod tests;
mod precomputed;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Result as Computed, Tensor};
use searchmill_engine::operator::OperatorError;

use crate::files::on_path;

pub use adapter::{Adapter, AdapterConfig, tensor_name as adapter_tensor_name};
pub(crate) use adapter::{CONFIG as ADAPTER_CONFIG, WEIGHTS as ADAPTER_WEIGHTS};
pub use block::Block;
pub use config::{DecoderConfig, Family, layer_name};
pub use dropout::Dropout;
pub use layout::Layout;
pub use linear::{Linear, LowRank, product};
pub use ops::log_probabilities;
pub use rope::{Angles, Rope};
pub(crate) use rope::{LLAMA3, llama3};
pub use weights::Tensors;
pub(crate) use weights::{INDEX, SINGLE};

/// A decoder with its weights.
#[derive(Clone)]
pub struct Decoder {
    config: Arc<DecoderConfig>,
    pub(crate) embedding: Tensor,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: Tensor,
    /// Weight of the output layer. `None`: tied to the embedding.
    head: Option<Tensor>,
    pub(crate) rope: Arc<Rope>,
    /// Precision of the computation; the weights may be more precise.
    dtype: DType,
}

/// Memory that a model needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryNeed {
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the keys and values of all tokens in flight.
    pub cache: u64,
    /// Bytes of activations.
    pub activations: u64,
}

impl MemoryNeed {
    /// Returns the total.
    pub(crate) fn total(&self) -> u64 {
        self.weights + self.cache + self.activations
    }

    /// Compares the need with `available` bytes.
    ///
    /// # Errors
    /// When the need is greater. The message lists its parts.
    pub(crate) fn check(&self, available: u64) -> Result<(), OperatorError> {
        if self.total() <= available {
            return Ok(());
        }
        let message = format!(
            "the model needs {} MiB (weights {}, keys and values {}, work space {}), but {} MiB are available",
            mib(self.total()),
            mib(self.weights),
            mib(self.cache),
            mib(self.activations),
            mib(available)
        );
        Err(OperatorError::machine(message).with_help("use a smaller model, fewer rows, or a shorter context"))
    }
}

/// Returns the MiB that bytes take, rounded up.
pub(crate) fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Returns the error of a failed computation.
pub fn failed(error: candle_core::Error) -> OperatorError {
    OperatorError::machine(format!("the model failed: {error}"))
}

impl Decoder {
    /// Reads `config.json` of a model folder.
    ///
    /// # Errors
    /// When it is missing, or its decoder is not supported.
    pub fn read_config(folder: &Path) -> Result<DecoderConfig, OperatorError> {
        let path = folder.join("config.json");
        let text = std::fs::read(&path).map_err(on_path(&path))?;
        DecoderConfig::parse(&text, &path.display().to_string())
    }

    /// Loads a model folder.
    ///
    /// # Errors
    /// When a file is missing, broken, or does not fit `config.json`. The message names file and tensor.
    pub fn load(folder: &Path, device: &Device, dtype: DType) -> Result<Self, OperatorError> {
        let config = Self::read_config(folder)?;
        let tensors = weights::read_folder(folder, device, dtype)?;
        Self::from_checked(config, tensors, &folder.display().to_string())
    }

    /// Creates a decoder from tensors. These may be variables: gradients flow to them, and the decoder sees updates.
    ///
    /// # Errors
    /// When a tensor is missing, unexpected, or of the wrong shape.
    pub(crate) fn from_weights(config: DecoderConfig, tensors: Tensors) -> Result<Self, OperatorError> {
        Self::from_checked(config, tensors, "the weights")
    }

    /// Like [`Self::from_weights`]; `origin` says in messages where the tensors come from.
    ///
    /// # Errors
    /// When a tensor is missing, unexpected, or of the wrong shape.
    pub(crate) fn from_checked(config: DecoderConfig, tensors: Tensors, origin: &str) -> Result<Self, OperatorError> {
        // Checked first, so that the messages name the tensors as the files do.
        let mut tensors = weights::checked(&config, tensors, origin)?;
        let (embedding, norm) = (tensors.remove("model.embed_tokens.weight"), tensors.remove("model.norm.weight"));
        let (Some(embedding), Some(norm)) = (embedding, norm) else {
            return Err(OperatorError::engine("a checked tensor is missing"));
        };
        let head = tensors.remove("lm_head.weight");
        let mut blocks = Vec::with_capacity(config.num_hidden_layers);
        for layer in 0..config.num_hidden_layers {
            blocks.push(Block::new(&config, layer, &mut tensors).map_err(failed)?);
        }
        let (rope, dtype) = (Arc::new(Rope::new(&config)), embedding.dtype());
        Ok(Self { rope, config: Arc::new(config), embedding, blocks, norm, head, dtype })
    }

    /// Sets the precision of the computation. Gradients have the precision of the weights.
    #[must_use]
    pub(crate) fn computing_in(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns the weight of the output layer (vocabulary × dimensions), which may be tied to the embedding.
    pub(crate) fn head_weight(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Computes the last layer's vectors: rows × columns tokens (u32) to rows × columns × dimensions.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or the device fails.
    pub fn hidden(&self, tokens: &Tensor, layout: &Layout) -> Computed<Tensor> {
        let (mut hidden, angles) = (self.embed(tokens)?, self.angles(layout));
        for block in &self.blocks {
            hidden = block.forward(&hidden, layout, &angles)?;
        }
        self.finish(&hidden)
    }

    /// Embeds tokens: the first step of [`Self::hidden`]. The steps are public so that training can hold the activations of
    /// one layer at a time.
    pub fn embed(&self, tokens: &Tensor) -> Computed<Tensor> {
        let (rows, columns) = tokens.dims2()?;
        let vectors = self.embedding.index_select(&tokens.flatten_all()?, 0)?;
        vectors.to_dtype(self.dtype)?.reshape((rows, columns, self.config.hidden_size))
    }

    /// Returns the rotary angles of a layout, needed by every layer.
    pub fn angles(&self, layout: &Layout) -> Angles {
        self.rope.angles(&layout.positions)
    }

    /// Applies the final norm: the last step of [`Self::hidden`].
    pub fn finish(&self, hidden: &Tensor) -> Computed<Tensor> {
        ops::rms_norm(hidden, &self.norm, self.config.rms_norm_eps)
    }

    /// Computes logits (… × vocabulary) from vectors (… × dimensions).
    pub fn logits(&self, hidden: &Tensor) -> Computed<Tensor> {
        let mut shape = hidden.dims().to_vec();
        // One product, whatever the leading dimensions are.
        let flat = hidden.reshape(((), self.config.hidden_size))?;
        let logits = product(&flat, self.head_weight())?;
        if let Some(last) = shape.last_mut() {
            *last = self.config.vocab_size;
        }
        logits.reshape(shape)
    }

    /// Returns the linear maps of all blocks with their full names (`model.layers.0.self_attn.q_proj`).
    fn modules(&self) -> impl Iterator<Item = (String, &Linear)> {
        self.blocks.iter().enumerate().flat_map(move |(layer, block)| {
            let names = self.config.projections().into_iter().map(move |(name, ..)| layer_name(layer, name));
            names.zip(&block.maps)
        })
    }

    /// Returns the weights by their names in a checkpoint: tied embeddings once, no adapters.
    pub fn parameters(&self) -> Tensors {
        let mut all = Tensors::new();
        all.insert("model.embed_tokens.weight".to_owned(), self.embedding.clone());
        all.insert("model.norm.weight".to_owned(), self.norm.clone());
        all.extend(self.head.as_ref().map(|head| ("lm_head.weight".to_owned(), head.clone())));
        for (layer, block) in self.blocks.iter().enumerate() {
            for (name, weight) in block.norms() {
                all.insert(layer_name(layer, name), weight.clone());
            }
        }
        for (module, linear) in self.modules() {
            all.extend(linear.bias.as_ref().map(|bias| (format!("{module}.bias"), bias.clone())));
            all.insert(format!("{module}.weight"), linear.weight.clone());
        }
        all
    }

    /// Returns the weights with the adapter merged into them, as a checkpoint.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn merged_parameters(&self) -> Computed<Tensors> {
        let mut all = self.parameters();
        for (module, linear) in self.modules() {
            all.insert(format!("{module}.weight"), linear.merged()?);
        }
        Ok(all)
    }

    /// Attaches an adapter, whose tensors may be variables.
    ///
    /// # Errors
    /// When the model lacks one of its modules.
    pub fn attach(&mut self, adapter: &Adapter) -> Result<(), OperatorError> {
        // Numbered in the order of their names: the number decides which inputs a module drops.
        for (number, (module, (a, b))) in adapter.modules.iter().enumerate() {
            let Some(linear) = self.module_mut(module) else {
                return Err(OperatorError::data(format!("the model has no module `{module}` to adapt")));
            };
            linear.adapter = Some(LowRank {
                a: a.clone(),
                b: b.clone(),
                scale: adapter.config.scale(),
                dropout: adapter.config.lora_dropout,
                number: number as u64,
            });
        }
        Ok(())
    }

    fn module_mut(&mut self, module: &str) -> Option<&mut Linear> {
        let (layer, name) = module.strip_prefix("model.layers.")?.split_once('.')?;
        let index = self.config.projections().iter().position(|(known, ..)| *known == name)?;
        self.blocks.get_mut(layer.parse::<usize>().ok()?)?.maps.get_mut(index)
    }
}

/// Returns the memory needed to generate `rows` rows of `tokens` tokens, at `number_bytes` bytes per number.
pub(crate) fn inference_need(config: &DecoderConfig, rows: usize, tokens: usize, number_bytes: usize) -> MemoryNeed {
    // The widest buffer of a token is its logits, or what a layer computes.
    let widest = config.vocab_size.max(config.hidden_size * 8 + config.intermediate_size * 3);
    MemoryNeed {
        weights: (config.parameter_count() * number_bytes) as u64,
        cache: (config.cache_bytes_per_token(number_bytes) * rows * tokens) as u64,
        activations: (widest * rows.max(64) * number_bytes) as u64,
    }
}
