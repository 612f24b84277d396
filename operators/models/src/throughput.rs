//! Throughput of models with given shapes and random weights on a device.

use candle_core::{DType, Tensor};
use searchmill_engine::operator::OperatorError;

use crate::decoder::{Decoder, DecoderConfig, Tensors, failed};
use crate::device::Compute;

pub use crate::inference::throughput::{Generation, generation};
pub use crate::training::throughput::{Tuned, tuning};

/// A model from a `config.json`, with random weights.
pub struct Drawn {
    pub config: DecoderConfig,
    pub decoder: Decoder,
}

impl Drawn {
    /// Draws a model.
    ///
    /// # Errors
    /// When `config` is not a decoder's `config.json`, or the device fails.
    pub fn new(config: &str, compute: &Compute) -> Result<Self, OperatorError> {
        let config = DecoderConfig::parse(config.as_bytes(), "the shape")?;
        let mut tensors = Tensors::new();
        for (name, shape) in config.tensors() {
            let tensor = if name.ends_with("norm.weight") {
                Tensor::ones(shape, compute.dtype, &compute.device)
            } else {
                Tensor::randn(0.0_f32, 0.02, shape, &compute.device)
            };
            let tensor = tensor.and_then(|tensor| tensor.to_dtype(compute.dtype)).map_err(failed)?;
            tensors.insert(name, tensor);
        }
        let decoder = Decoder::from_weights(config.clone(), tensors)?;
        Ok(Self { config, decoder })
    }

    /// Returns the number of weights of all blocks' linear layers. A token takes twice as many operations.
    pub fn mapped(&self) -> f64 {
        let layer: usize = self.config.projections().iter().map(|(_, outputs, inputs)| outputs * inputs).sum();
        (layer * self.config.num_hidden_layers) as f64
    }

    /// Returns the number of weights of the output layer.
    pub fn head(&self) -> f64 {
        (self.config.vocab_size * self.config.hidden_size) as f64
    }

    /// Returns the operations of attention between one token and `keys` keys, over all layers.
    pub fn attention(&self, keys: f64) -> f64 {
        let width = self.config.num_attention_heads * self.config.head_dimensions();
        4.0 * keys * (width * self.config.num_hidden_layers) as f64
    }
}

/// Waits until the device has finished.
pub fn wait(compute: &Compute) -> Result<(), OperatorError> {
    // Reading a number waits for the operations before it.
    let zeros = Tensor::zeros(1, DType::F32, &compute.device).map_err(failed)?;
    zeros.to_vec1::<f32>().map_err(failed)?;
    compute.device.synchronize().map_err(failed)
}
