//! The served indexes: one opened search with its queue.

use std::sync::Arc;

use axum::http::HeaderValue;
use searchmill_retrieval::Search;

use super::queue::Queue;
use crate::serve::env::metrics::Metrics;

/// A served index.
pub(crate) struct Served {
    /// As given on the command line.
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) chunks: u32,
}

/// An opened search and the indexes that it searches.
pub(crate) struct Opened {
    pub(crate) search: Search,
    pub(crate) indexes: Vec<Served>,
}

/// The indexes in use. Its thread ends when the last request that uses it has ended.
pub(crate) struct Index {
    pub(crate) queue: Queue,
    pub(crate) served: Vec<Served>,
    /// Digests, joined by commas.
    pub(crate) text: String,
    /// Value of the header `X-Searchmill-Index`.
    pub(crate) digests: HeaderValue,
}

impl Index {
    /// Starts the queue of an opened search.
    pub(crate) fn start(opened: Opened, capacity: usize, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let text = opened.indexes.iter().map(|index| index.digest.as_str()).collect::<Vec<_>>().join(",");
        let digests = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
        let queue = Queue::start(opened.search, capacity, metrics)?;
        Ok(Self { queue, served: opened.indexes, text, digests })
    }
}
