//! Cache of keys and values per row, for the tensor path.

use candle_core::{DType, Device, Result, Tensor};

use super::config::DecoderConfig;
use super::layout::{Layout, token};

/// A cache with one slot per row. Rows may have different lengths.
pub struct KvCache {
    /// Keys and values of each layer: rows × capacity × heads × head size.
    layers: Vec<(Tensor, Tensor)>,
    /// Tokens in each row.
    filled: Vec<usize>,
    /// Padding tokens at the start of each row.
    starts: Vec<usize>,
    capacity: usize,
}

impl KvCache {
    /// Creates an empty cache for `rows` rows of at most `capacity` tokens.
    pub fn new(config: &DecoderConfig, rows: usize, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = (rows, capacity, config.key_value_heads(), config.head_dimensions());
        let empty = || Tensor::zeros(shape, dtype, device);
        let layers = (0..config.num_hidden_layers).map(|_| Ok((empty()?, empty()?))).collect::<Result<_>>()?;
        Ok(Self { layers, filled: vec![0; rows], starts: vec![0; rows], capacity })
    }

    /// Returns the layout of the next `lengths` tokens of each row, padded on the right to `columns`.
    pub fn next_layout(&self, lengths: &[usize], columns: usize) -> Layout {
        let mut tokens = Vec::with_capacity(lengths.len() * columns);
        for (row, length) in lengths.iter().enumerate() {
            let (start, filled) = (self.starts[row] as u32, self.filled[row] as u32);
            let at = |column: usize| filled + column as u32;
            tokens.extend((0..columns).map(|column| token(at(column), (column < *length).then_some(start))));
        }
        Layout::of(tokens, columns, lengths.to_vec())
    }

    /// Appends a layer's new keys and values (rows × columns × heads × head size). Returns all keys and values.
    pub(super) fn extend(&mut self, layer: usize, layout: &Layout, new: (Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
        let longest = self.filled.iter().max().copied().unwrap_or(0) + layout.columns;
        if longest > self.capacity {
            candle_core::bail!("{longest} tokens do not fit a cache of {}", self.capacity);
        }
        let (keys, values) = &self.layers[layer];
        self.write(keys, &new.0)?;
        self.write(values, &new.1)?;
        Ok((keys.narrow(1, 0, longest)?, values.narrow(1, 0, longest)?))
    }

    fn write(&self, all: &Tensor, new: &Tensor) -> Result<()> {
        let new = new.detach().contiguous()?;
        if self.filled.iter().all(|filled| *filled == self.filled[0]) {
            return all.slice_set(&new, 1, self.filled[0]);
        }
        for (row, filled) in self.filled.iter().enumerate() {
            all.narrow(0, row, 1)?.slice_set(&new.narrow(0, row, 1)?, 1, *filled)?;
        }
        Ok(())
    }

    /// Adds the tokens of a pass to the lengths, after its last layer.
    pub(super) fn advance(&mut self, layout: &Layout) {
        if self.filled.iter().all(|filled| *filled == 0) {
            self.starts.clone_from(&layout.starts);
        }
        for (filled, kept) in self.filled.iter_mut().zip(&layout.kept) {
            *filled += kept;
        }
    }
}
