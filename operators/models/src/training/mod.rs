//! Training a decoder: examples, objectives, forward and backward passes, the optimiser, and the loop over steps.

pub mod batch;
pub mod example;
pub mod fit;
pub mod learning_rate;
pub mod memory;
pub mod objective;
pub mod optimizer;
pub mod packing;
mod plain;
#[cfg(test)]
mod reference;
pub mod state;
pub mod step;
#[cfg(test)]
mod step_tests;
pub mod student;
pub mod tensors;
pub mod throughput;
