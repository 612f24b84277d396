//! The retrieval APIs, one file for each system whose servers they replace, over one index with one queue.

pub(super) mod colbert;
pub(super) mod index;
pub(super) mod journal;
pub(super) mod queue;
pub(super) mod r1_searcher;
pub(super) mod ranking;
pub(super) mod research;
pub(super) mod search_r1;
