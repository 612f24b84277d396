//! Loops of neural networks over plain slices of f32: products of matrices, norms, attention, losses and AdamW, forwards
//! and backwards, on the vector units and threads that are there.
//!
//! A crate of its own so that it is optimised in every profile: a test or a quickstart that trains a model spends its
//! time here. It knows nothing of tensors, files or pipelines. Shapes are given row by row (row-major).
//!
//! Whatever is summed over rows is summed in blocks of a fixed size and in a fixed order: results do not depend on the
//! number of threads.

pub mod adamw;
pub mod attention;
pub mod loops;
pub mod matrix;
pub mod product;
pub mod sums;
pub mod training;
pub mod vectorized;
