//! Conversion of rollouts to training rows: what the converters share.

pub(crate) mod carry;
pub(crate) mod conversation;
pub(crate) mod hermes;
pub(crate) mod kernel;
pub(crate) mod pairs;
#[cfg(test)]
mod pair_tests;
#[cfg(test)]
pub(crate) mod testing;
