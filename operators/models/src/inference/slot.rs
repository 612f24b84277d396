//! What a row has read so far: its tokens, and their keys and values in every layer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Result;

use super::shape::Shape;

/// Numbers of the places that are free.
pub(super) type Free = Arc<Mutex<BTreeSet<usize>>>;

/// A row's place on a device; it is free again when this is dropped.
pub(super) struct Place {
    number: usize,
    free: Free,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).insert(self.number);
    }
}

impl Place {
    /// The first one that is free, if any is.
    pub(super) fn take(free: &Free) -> Option<Self> {
        let number = free.lock().unwrap_or_else(PoisonError::into_inner).pop_first()?;
        Some(Self { number, free: Arc::clone(free) })
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }
}

/// One row's share of the cache. It grows with the row; what it may grow to is planned before the row is let in.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) tokens: Vec<u32>,
    /// For each layer and head: tokens × size, keys and values apart. None where they lie on a device.
    heads: Vec<Head>,
    /// Where they lie on a device.
    place: Option<Place>,
}

#[derive(Clone, Default)]
pub(super) struct Head {
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl Slot {
    pub(super) fn new(shape: &Shape) -> Self {
        Self { heads: vec![Head::default(); shape.layers * shape.shared], ..Self::default() }
    }

    /// An empty slot on a device.
    pub(super) fn at(place: Place) -> Self {
        Self { place: Some(place), ..Self::default() }
    }

    /// Its place on the device.
    pub(super) fn place(&self) -> Result<usize> {
        let place = self.place.as_ref().map(Place::number);
        place.ok_or_else(|| candle_core::Error::Msg("the slot is not on a device".to_owned()))
    }

    pub(super) fn head(&self, shape: &Shape, layer: usize, head: usize) -> &Head {
        &self.heads[layer * shape.shared + head]
    }

    /// Takes up one token's keys and values in a layer, all heads of each one after the other.
    pub(super) fn push(&mut self, shape: &Shape, layer: usize, keys: &[f32], values: &[f32]) {
        let heads = &mut self.heads[layer * shape.shared..][..shape.shared];
        let parts = keys.chunks_exact(shape.size).zip(values.chunks_exact(shape.size));
        for (head, (keys, values)) in heads.iter_mut().zip(parts) {
            head.keys.extend_from_slice(keys);
            head.values.extend_from_slice(values);
        }
    }

    /// Tokens that it has in common with a text, from the first one on.
    pub(super) fn shared_with(&self, text: &[u32]) -> usize {
        self.tokens.iter().zip(text).take_while(|(one, other)| one == other).count()
    }

    /// Forgets all but the first `count` tokens.
    pub(super) fn truncate(&mut self, shape: &Shape, count: usize) {
        self.tokens.truncate(count);
        for head in &mut self.heads {
            head.keys.truncate(count * shape.size);
            head.values.truncate(count * shape.size);
        }
    }

    /// A copy of the first `count` tokens.
    pub(super) fn beginning(&self, shape: &Shape, count: usize) -> Self {
        let numbers = count * shape.size;
        let part = |head: &Head| Head { keys: head.keys[..numbers].to_vec(), values: head.values[..numbers].to_vec() };
        Self { tokens: self.tokens[..count].to_vec(), heads: self.heads.iter().map(part).collect(), place: None }
    }
}
