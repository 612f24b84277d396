//! Weights of a decoder's layers for generation, with adapters merged into them: tensors on a device, or plain numbers.

use candle_core::{Result, Tensor};

use crate::decoder::{Block, Linear};
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
    fn new(linears: &[&Linear], take: impl Fn(&Tensor) -> Result<T>) -> Result<Self> {
        let whole = |parts: &[Tensor]| take(&if parts.len() == 1 { parts[0].clone() } else { Tensor::cat(parts, 0)? });
        let weights = linears.iter().map(|linear| Ok(linear.merged()?.detach())).collect::<Result<Vec<_>>>()?;
        let biases: Vec<Tensor> = linears.iter().filter_map(|linear| linear.bias.clone()).collect();
        let bias = if biases.len() == linears.len() { Some(whole(&biases)?) } else { None };
        Ok(Self { weight: whole(&weights)?, bias, inputs: weights[0].dim(1)? })
    }
}

impl<T> Layer<T> {
    /// Takes the weights of a block, each by `take`.
    pub(super) fn new(block: &Block, take: impl Fn(&Tensor) -> Result<T>) -> Result<Self> {
        let stack = |maps: &[usize]| {
            let linears: Vec<&Linear> = maps.iter().map(|map| &block.maps[*map]).collect();
            Stack::new(&linears, &take)
        };
        let head_norms = block.head_norms.as_ref().map(|(queries, keys)| Result::Ok((take(queries)?, take(keys)?)));
        Ok(Self {
            input_norm: take(&block.input_norm)?,
            query_key_value: stack(&[QUERY, KEY, VALUE])?,
            head_norms: head_norms.transpose()?,
            output: stack(&[OUTPUT])?,
            feed_norm: take(&block.feed_norm)?,
            gate_up: stack(&[GATE, UP])?,
            down: stack(&[DOWN])?,
        })
    }
}
