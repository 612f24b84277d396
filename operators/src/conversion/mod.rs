//! Conversion of rollouts and questions to training rows: one file per layout.

pub(crate) mod conversation;
pub(crate) mod hermes;
pub(crate) mod kernel;
pub(crate) mod openai;
pub(crate) mod sharegpt;
pub(crate) mod swift;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod trl;
pub(crate) mod verl;
