//! Training a decoder: examples, forward and backward passes, the optimiser, and the state between two steps.

mod batch;
pub mod example;
pub mod gradient;
pub mod optimizer;
mod plain;
pub mod probe;
#[cfg(test)]
mod reference;
pub mod schedule;
pub mod state;
pub mod student;
