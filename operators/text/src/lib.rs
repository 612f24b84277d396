//! Text: answer normalisation and metrics, search terms, chunking, tokenizers, JSON as Python writes it.

pub mod analysis;
pub mod answer_metrics;
pub mod baseline;
pub mod chunking;
pub mod fnv;
pub mod json;
pub mod normalize;
pub mod retrieval_metrics;
pub mod thoughts;
