//! Models that have learnt nothing: a tokenizer trained on a corpus, and seeded weights.

pub mod phrases;
pub mod tokenizer;
pub mod weights;
