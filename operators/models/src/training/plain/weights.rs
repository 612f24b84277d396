//! A student's weights as slices of f32.

use std::ops::Deref;

use candle_core::{CpuStorage, Layout as Place, Result, Storage, Tensor};
use searchmill_kernels::training::{Layer, LowRank, Map, Sizes};

use crate::decoder::{Block, DecoderConfig, Dropout, Linear};

/// A weight's numbers, locked for reading.
pub(super) struct Locked<'a> {
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    place: &'a Place,
}

impl<'a> Locked<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Self {
        let (storage, place) = tensor.storage_and_layout();
        Self { storage: Box::new(storage), place }
    }

    pub(super) fn numbers(&self) -> Result<&[f32]> {
        // A view of another tensor has offsets; a transposed one has none.
        let (Storage::Cpu(CpuStorage::F32(numbers)), Some((start, end))) =
            (&**self.storage, self.place.contiguous_offsets())
        else {
            candle_core::bail!("a weight is not contiguous f32 in memory")
        };
        Ok(&numbers[start..end])
    }
}

/// Weights of one linear map.
struct LockedMap<'a> {
    weight: Locked<'a>,
    bias: Option<Locked<'a>>,
    low_rank: Option<(Locked<'a>, Locked<'a>)>,
    linear: &'a Linear,
}

impl<'a> LockedMap<'a> {
    fn of(linear: &'a Linear) -> Self {
        Self {
            weight: Locked::of(&linear.weight),
            bias: linear.bias.as_ref().map(Locked::of),
            low_rank: linear.adapter.as_ref().map(|adapter| (Locked::of(&adapter.a), Locked::of(&adapter.b))),
            linear,
        }
    }

    /// Returns the map with the dropout masks of this pass, for `tokens` tokens.
    fn map(&self, tokens: usize, dropout: Option<Dropout>) -> Result<Map<'_>> {
        // The mask depends on the pass, so the map is made anew for each.
        let inputs = self.linear.weight.dim(1)?;
        let low_rank = match (&self.low_rank, &self.linear.adapter) {
            (Some((a, b)), Some(adapter)) => {
                let mask = match dropout {
                    Some(dropout) if adapter.dropout > 0.0 => {
                        Some(dropout.mask(tokens * inputs, adapter.dropout, adapter.number))
                    }
                    _ => None,
                };
                Some(LowRank { a: a.numbers()?, b: b.numbers()?, scale: adapter.scale as f32, mask })
            }
            _ => None,
        };
        let mut bias = None;
        if let Some(locked) = &self.bias {
            bias = Some(locked.numbers()?);
        }
        Ok(Map { weight: self.weight.numbers()?, bias, inputs, low_rank })
    }
}

/// Weights of one layer.
pub(super) struct LockedLayer<'a> {
    input_norm: Locked<'a>,
    feed_norm: Locked<'a>,
    head_norms: Option<(Locked<'a>, Locked<'a>)>,
    maps: Vec<LockedMap<'a>>,
    sizes: Sizes,
}

impl<'a> LockedLayer<'a> {
    pub(super) fn of(block: &'a Block, config: &DecoderConfig) -> Self {
        let size = config.head_dimensions();
        Self {
            input_norm: Locked::of(&block.input_norm),
            feed_norm: Locked::of(&block.feed_norm),
            head_norms: block.head_norms.as_ref().map(|(queries, keys)| (Locked::of(queries), Locked::of(keys))),
            maps: block.maps.iter().map(LockedMap::of).collect(),
            sizes: Sizes {
                queries: config.num_attention_heads * size,
                keys: config.key_value_heads() * size,
                eps: config.rms_norm_eps as f32,
            },
        }
    }

    pub(super) fn layer(&self, tokens: usize, dropout: Option<Dropout>) -> Result<Layer<'_>> {
        let maps: Vec<Map<'_>> = self.maps.iter().map(|map| map.map(tokens, dropout)).collect::<Result<_>>()?;
        let Ok(maps) = maps.try_into() else { candle_core::bail!("a layer has seven linear maps") };
        let mut head_norms = None;
        if let Some((queries, keys)) = &self.head_norms {
            head_norms = Some((queries.numbers()?, keys.numbers()?));
        }
        let (input_norm, feed_norm) = (self.input_norm.numbers()?, self.feed_norm.numbers()?);
        Ok(Layer { input_norm, feed_norm, head_norms, maps, sizes: self.sizes })
    }
}
