//! Weights of a decoder's layers for generation, with adapters merged into them: tensors on a device, or plain numbers.

use candle_core::{Result, Tensor};

use crate::decoder::Block;
use searchmill_kernels::training::{DOWN, GATE, KEY, OUTPUT, QUERY, UP, VALUE};

/// Several linear maps of the same inputs, stacked.
pub(super) struct Stack<T> {
    /// Outputs × inputs.
    pub(super) weight: T,
    pub(super) bias: Option<T>,
    pub(super) inputs: usize,
}

pub(super) struct Layer<T> {
    pub(super) input_norm: T,
    pub(super) query_key_value: Stack<T>,
    pub(super) head_norms: Option<(T, T)>,
    pub(super) output: Stack<T>,
    pub(super) feed_norm: T,
    pub(super) gate_up: Stack<T>,
    pub(super) down: Stack<T>,
}

impl<T> Stack<T> {
    /// Stacks these maps of a block.
    fn new(block: &Block, maps: &[usize], take: &impl Fn(&Tensor) -> Result<T>) -> Result<Self> {
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for map in maps {
            let linear = &block.maps[*map];
            // Detached: generation needs no gradients, and would hold on to what computed the weight.
            weights.push(linear.merged()?.detach());
            biases.extend(linear.bias.clone());
        }
        // In all families, maps of the same inputs have biases, or none has.
        let bias = if biases.len() == maps.len() { Some(take(&concatenated(&biases)?)?) } else { None };
        Ok(Self { weight: take(&concatenated(&weights)?)?, bias, inputs: weights[0].dim(1)? })
    }
}

/// Concatenates tensors; a single one is not copied.
fn concatenated(parts: &[Tensor]) -> Result<Tensor> {
    if let [one] = parts { Ok(one.clone()) } else { Tensor::cat(parts, 0) }
}

impl<T> Layer<T> {
    /// Takes the weights of a block, each by `take`.
    pub(super) fn new(block: &Block, take: impl Fn(&Tensor) -> Result<T>) -> Result<Self> {
        let mut head_norms = None;
        if let Some((queries, keys)) = &block.head_norms {
            head_norms = Some((take(queries)?, take(keys)?));
        }
        Ok(Self {
            input_norm: take(&block.input_norm)?,
            query_key_value: Stack::new(block, &[QUERY, KEY, VALUE], &take)?,
            head_norms,
            output: Stack::new(block, &[OUTPUT], &take)?,
            feed_norm: take(&block.feed_norm)?,
            gate_up: Stack::new(block, &[GATE, UP], &take)?,
            down: Stack::new(block, &[DOWN], &take)?,
        })
    }
}
