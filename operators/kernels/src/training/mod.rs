//! Forward and backward passes of a decoder's layers for training on a CPU. Gradients are written by hand: of full weights or
//! of low-rank adapters.

mod dropout;
mod head;
mod layer;
mod linear;
mod rows;

pub use dropout::Mask;
pub use head::{Head, Predictions, Slopes};
pub use layer::{Activations, DOWN, GATE, KEY, Layer, LayerGradients, MAPS, OUTPUT, Place, QUERY, Sizes, UP, VALUE};
pub use linear::{LowRank, Map, MapGradients};
pub use rows::{norm, norm_backward};

/// Adds `more` to `numbers`, element by element.
pub fn add(numbers: &mut [f32], more: &[f32]) {
    for (number, more) in numbers.iter_mut().zip(more) {
        *number += more;
    }
}

#[cfg(test)]
mod tests;
