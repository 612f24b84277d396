//! Cache of keys and values on a device: one tensor per layer with one place per row. It grows with the longest row.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Tensor};

use super::shape::Shape;
use super::slot::{Free, Place, Slot};

/// Initial capacity in tokens.
const LEAST: usize = 256;

/// Keys and values of all rows.
pub(super) struct DeviceCache {
    /// Keys and values of each layer: places × heads × capacity × size.
    layers: Vec<(Tensor, Tensor)>,
    shape: Shape,
    places: usize,
    free: Free,
    capacity: usize,
    /// Maximum length of a row in tokens.
    context: usize,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

impl DeviceCache {
    pub(super) fn new(shape: Shape, places: usize, context: usize, dtype: DType, device: Device) -> Self {
        let free = Arc::new(Mutex::new((0..places).collect()));
        Self { layers: Vec::new(), shape, places, free, capacity: 0, context, dtype, device }
    }

    /// Grows the cache for rows of `tokens` tokens.
    pub(super) fn reserve(&mut self, tokens: usize) -> Result<()> {
        if tokens <= self.capacity && !self.layers.is_empty() {
            return Ok(());
        }
        if tokens > self.context {
            candle_core::bail!("a row of {tokens} tokens does not fit a context of {}", self.context);
        }
        // Doubled, so that a growing row copies the cache a few times only.
        let capacity = tokens.next_power_of_two().max(LEAST).min(self.context);
        let shape = (self.places, self.shape.shared, capacity, self.shape.size);
        if self.layers.is_empty() {
            // All or none: what was allocated before the memory ran out is freed, and the next request tries again.
            let mut layers = Vec::with_capacity(self.shape.layers);
            for _ in 0..self.shape.layers {
                let keys = Tensor::zeros(shape, self.dtype, &self.device)?;
                layers.push((keys, Tensor::zeros(shape, self.dtype, &self.device)?));
            }
            self.layers = layers;
        } else {
            // One part after the other: only one of them is there twice.
            for (keys, values) in &mut self.layers {
                for part in [keys, values] {
                    let grown = Tensor::zeros(shape, self.dtype, &self.device)?;
                    grown.slice_set(part, 2, 0)?;
                    *part = grown;
                }
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Allocates an empty slot.
    pub(super) fn empty(&self) -> Result<Slot> {
        let place = Place::take(&self.free);
        let Some(place) = place else { candle_core::bail!("all {} places of the cache are taken", self.places) };
        Ok(Slot::at(place))
    }

    /// Allocates a slot with a copy of the first `count` tokens of another one.
    pub(super) fn beginning(&self, slot: &Slot, count: usize) -> Result<Slot> {
        let mut copy = self.empty()?;
        let (from, to) = (slot.place()?, copy.place()?);
        for (keys, values) in &self.layers {
            for all in [keys, values] {
                // A copy in between: the places are parts of one tensor.
                let part = all.narrow(0, from, 1)?.narrow(2, 0, count)?.force_contiguous()?;
                all.narrow(0, to, 1)?.slice_set(&part, 2, 0)?;
            }
        }
        copy.tokens.extend_from_slice(&slot.tokens[..count]);
        Ok(copy)
    }

    /// Returns the indexes of the heads of tokens at (place, position), for [`Self::write`]: (tokens · heads) × size.
    pub(super) fn addresses(&self, tokens: impl Iterator<Item = (usize, usize)>) -> Result<Tensor> {
        let (heads, size) = (self.shape.shared, self.shape.size);
        let mut rows: Vec<u32> = Vec::new();
        for (place, position) in tokens {
            rows.extend((0..heads).map(|head| ((place * heads + head) * self.capacity + position) as u32));
        }
        let count = rows.len();
        Tensor::from_vec(rows, (count, 1), &self.device)?.expand((count, size))?.contiguous()
    }

    /// Writes keys and values (tokens × heads × size each) to their places.
    pub(super) fn write(&self, layer: usize, keys: &Tensor, values: &Tensor, places: &Tensor) -> Result<()> {
        let (all_keys, all_values) = &self.layers[layer];
        for (all, new) in [(all_keys, keys), (all_values, values)] {
            let rows = all.reshape(((), self.shape.size))?;
            rows.scatter_set(places, &new.contiguous()?.reshape(((), self.shape.size))?, 0)?;
        }
        Ok(())
    }

    /// Returns the first `tokens` keys and values of places `first..first + places`: places × heads × tokens × size.
    pub(super) fn rows(&self, layer: usize, first: usize, places: usize, tokens: usize) -> Result<(Tensor, Tensor)> {
        let (keys, values) = &self.layers[layer];
        let keys = keys.narrow(0, first, places)?.narrow(2, 0, tokens)?;
        Ok((keys, values.narrow(0, first, places)?.narrow(2, 0, tokens)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { layers: 1, heads: 2, shared: 2, size: 2, hidden: 4, wide: 4, vocabulary: 8 };

    #[test]
    fn places_come_back_and_rows_stay_when_the_cache_grows() {
        let mut cache = DeviceCache::new(SHAPE, 2, 1000, DType::F32, Device::Cpu);
        cache.reserve(3).unwrap();
        let (first, mut second) = (cache.empty().unwrap(), cache.empty().unwrap());
        assert!(cache.empty().err().unwrap().to_string().contains("all 2 places"));
        let numbers = Tensor::arange(0.0_f32, 8.0, &Device::Cpu).unwrap().reshape((2, 2, 2)).unwrap();
        let places = cache.addresses([(1, 0), (1, 1)].into_iter()).unwrap();
        cache.write(0, &numbers, &numbers, &places).unwrap();
        second.tokens = vec![5, 6];
        cache.reserve(300).unwrap();
        drop(first);
        let copy = cache.beginning(&second, 1).unwrap();
        assert_eq!((copy.place().unwrap(), copy.tokens.clone()), (0, vec![5]));
        let (keys, _) = cache.rows(0, 0, 2, 2).unwrap();
        let keys: Vec<f32> = keys.flatten_all().unwrap().to_vec1().unwrap();
        let whole = [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0];
        assert_eq!(keys[8..], whole, "place × head × token × size");
        assert_eq!((&keys[..2], &keys[4..6]), (&whole[..2], &whole[4..6]));
        assert!(cache.reserve(1001).unwrap_err().to_string().contains("1001 tokens"));
    }
}
