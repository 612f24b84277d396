//! Progress events of a node, at most ten per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::endpoint::Budget;
use crate::events::{Event, Reporter};
use crate::node_id::NodeId;
use crate::operator::{ProgressSink, Retry};

const INTERVAL_MS: u64 = 100;

/// Progress of one node.
pub(crate) struct NodeProgress {
    node: NodeId,
    reporter: Arc<dyn Reporter>,
    start: Instant,
    next_ms: AtomicU64,
    cached_rows: AtomicU64,
    /// What the node has spent.
    pub(crate) spent: Arc<Budget>,
}

impl NodeProgress {
    pub(crate) fn new(node: &str, reporter: Arc<dyn Reporter>) -> Self {
        let (next_ms, cached_rows) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { node: node.into(), reporter, start: Instant::now(), next_ms, cached_rows, spent: Arc::default() }
    }
}

impl ProgressSink for NodeProgress {
    fn set(&self, done: u64, total: u64, unit: &str) {
        let now = self.start.elapsed().as_millis() as u64;
        let next = self.next_ms.load(Ordering::Relaxed);
        // Of the threads that report at the same time, one sends the event.
        let (after, relaxed) = (now + INTERVAL_MS, Ordering::Relaxed);
        if now >= next && self.next_ms.compare_exchange(next, after, relaxed, relaxed).is_ok() {
            let cached = self.cached_rows.load(Ordering::Relaxed);
            let (node, unit) = (self.node.clone(), unit.to_owned());
            let spent = self.spent.spent();
            let (calls, service_calls) = (spent.calls, spent.service_calls);
            let (tokens, cost) = (spent.tokens(), spent.cost());
            let event = Event::NodeProgress { node, done, total, unit, cached, calls, service_calls, tokens, cost };
            self.reporter.event(&event);
        }
    }

    fn resumed(&self, done: u64) {
        self.cached_rows.store(done, Ordering::Relaxed);
    }

    fn log(&self, line: &str) {
        self.reporter.event(&Event::NodeLog { node: self.node.clone(), line: line.to_owned() });
    }

    fn retried(&self, retry: &Retry<'_>) {
        self.reporter.event(&Event::CallRetried {
            node: self.node.clone(),
            attempt: retry.attempt,
            of: retry.of,
            seconds: retry.wait.as_secs_f64(),
            reason: retry.reason.clone(),
            message: retry.message.to_owned(),
        });
    }
}
