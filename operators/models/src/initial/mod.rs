//! Untrained models: a tokenizer trained on a corpus, and seeded random weights.

pub mod phrases;
pub mod tokenizer;
pub mod weights;
