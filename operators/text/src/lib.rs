//! Text algorithms: answer normalisation and metrics, search terms, chunking, tokenizers, Markdown, MinHash, JSON in
//! Python's format.
//!
//! Pure functions of their input. No I/O except loading a tokenizer file, no clock, no engine types.

pub mod analysis;
pub mod answer_metrics;
pub mod baseline;
pub mod chunking;
pub mod environment;
pub mod fnv;
pub mod json;
pub mod lexicon;
pub mod markdown;
pub mod minhash;
pub mod normalize;
pub mod retrieval_metrics;
pub mod thoughts;
pub mod unambiguous;
pub mod unicode;
pub mod words;
