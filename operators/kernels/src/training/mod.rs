//! A decoder's layers forwards and backwards, as training on a CPU takes them: gradients written by hand, of whole weights
//! or of low-rank additions to them.

mod layer;
mod linear;
mod loss;
mod rows;

pub use layer::{Activations, DOWN, GATE, KEY, Layer, LayerGradients, MAPS, OUTPUT, Place, QUERY, Sizes, UP, VALUE};
pub use linear::{LowRank, Map, MapGradients};
pub use loss::{Judged, Predicted, judge, learn};
pub use rows::{norm, norm_backward};

/// Adds `more` to `numbers`.
fn add(numbers: &mut [f32], more: &[f32]) {
    numbers.iter_mut().zip(more).for_each(|(number, more)| *number += more);
}

#[cfg(test)]
mod tests;
