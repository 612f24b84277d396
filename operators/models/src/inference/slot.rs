//! Slot of a row: the tokens read so far, and their keys and values in every layer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Result;

use super::shape::Shape;

/// Numbers of free places.
pub(super) type Free = Arc<Mutex<BTreeSet<usize>>>;

/// A row's place on a device, freed on drop.
pub(super) struct Place {
    number: usize,
    free: Free,
}

impl Drop for Place {
    fn drop(&mut self) {
        // A set whose insert panicked is still a set: the place must not be lost.
        self.free.lock().unwrap_or_else(PoisonError::into_inner).insert(self.number);
    }
}

impl Place {
    /// Takes the first free place, if any.
    pub(super) fn take(free: &Free) -> Option<Self> {
        let number = free.lock().unwrap_or_else(PoisonError::into_inner).pop_first()?;
        Some(Self { number, free: Arc::clone(free) })
    }
}

/// A row's part of the cache. It grows with the row; its maximum size is reserved before the row is admitted.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) tokens: Vec<u32>,
    /// Keys and values of each layer and head: tokens × size. Empty if they are on a device.
    heads: Vec<Head>,
    /// Place on a device.
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

    /// Creates an empty slot on a device.
    pub(super) fn at(place: Place) -> Self {
        Self { place: Some(place), ..Self::default() }
    }

    /// Returns the place on the device.
    pub(super) fn place(&self) -> Result<usize> {
        match &self.place {
            Some(place) => Ok(place.number),
            None => candle_core::bail!("the slot is not on a device"),
        }
    }

    pub(super) fn head(&self, shape: &Shape, layer: usize, head: usize) -> &Head {
        &self.heads[layer * shape.shared + head]
    }

    /// Appends a token's keys and values in a layer, with all heads concatenated.
    pub(super) fn push(&mut self, shape: &Shape, layer: usize, keys: &[f32], values: &[f32]) {
        let heads = &mut self.heads[layer * shape.shared..][..shape.shared];
        let parts = keys.chunks_exact(shape.size).zip(values.chunks_exact(shape.size));
        for (head, (keys, values)) in heads.iter_mut().zip(parts) {
            head.keys.extend_from_slice(keys);
            head.values.extend_from_slice(values);
        }
    }

    /// Returns the length of the common prefix with a text.
    pub(super) fn shared_with(&self, text: &[u32]) -> usize {
        self.tokens.iter().zip(text).take_while(|(one, other)| one == other).count()
    }

    /// Truncates the slot to the first `count` tokens.
    pub(super) fn truncate(&mut self, shape: &Shape, count: usize) {
        self.tokens.truncate(count);
        for head in &mut self.heads {
            head.keys.truncate(count * shape.size);
            head.values.truncate(count * shape.size);
        }
    }

    /// Copies the first `count` tokens.
    pub(super) fn beginning(&self, shape: &Shape, count: usize) -> Self {
        let numbers = count * shape.size;
        let mut heads = Vec::with_capacity(self.heads.len());
        for head in &self.heads {
            heads.push(Head { keys: head.keys[..numbers].to_vec(), values: head.values[..numbers].to_vec() });
        }
        Self { tokens: self.tokens[..count].to_vec(), heads, place: None }
    }
}
