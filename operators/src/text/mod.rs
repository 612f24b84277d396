//! Text rules that several operators share: answer normalisation, answer metrics, retrieval metrics.

pub mod answer_metrics;
pub(crate) mod fnv;
pub mod normalize;
pub mod retrieval_metrics;
pub(crate) mod thoughts;
