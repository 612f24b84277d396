//! Metrics in the text format of Prometheus.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of latencies in seconds.
const SECONDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Upper bounds of batch sizes in queries.
const QUERIES: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// Counts of values up to each bound.
#[derive(Clone, Default)]
struct Histogram {
    counts: [u64; 13],
    all: u64,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, bounds: &[f64; 13], value: f64) {
        // Cumulative, as Prometheus expects: a value counts in its bucket and in all above.
        for (count, bound) in self.counts.iter_mut().zip(bounds) {
            *count += u64::from(value <= *bound);
        }
        self.all += 1;
        self.sum += value;
    }

    /// Formats it; `label` is empty or ends with a comma.
    fn text(&self, name: &str, label: &str, bounds: &[f64; 13]) -> String {
        let buckets = self.counts.iter().zip(bounds);
        let mut text: String =
            buckets.map(|(count, bound)| format!("{name}_bucket{{{label}le=\"{bound}\"}} {count}\n")).collect();
        let own = label.trim_end_matches(',');
        let own = if own.is_empty() { String::new() } else { format!("{{{own}}}") };
        text += &format!("{name}_bucket{{{label}le=\"+Inf\"}} {}\n", self.all);
        text += &format!("{name}_sum{own} {}\n{name}_count{own} {}\n", self.sum, self.all);
        text
    }
}

#[derive(Default)]
struct Counts {
    requests: BTreeMap<(&'static str, u16), u64>,
    latencies: BTreeMap<&'static str, Histogram>,
    batches: Histogram,
}

/// Counts since the start.
#[derive(Default)]
pub(super) struct Metrics(Mutex<Counts>);

impl Metrics {
    /// Counts an answered request.
    pub(super) fn answered(&self, route: &'static str, status: u16, took: Duration) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.requests.entry((route, status)).or_default() += 1;
        counts.latencies.entry(route).or_default().add(&SECONDS, took.as_secs_f64());
    }

    /// Counts a batch of queries.
    pub(super) fn searched(&self, queries: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).batches.add(&QUERIES, queries as f64);
    }

    /// Formats all metrics. `waiting`: number of waiting queries; `episodes`: number of open episodes, if there are any.
    pub(super) fn text(&self, waiting: usize, episodes: Option<usize>) -> String {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = head("searchmill_requests_total", "counter", "Answered requests.");
        for ((route, status), count) in &counts.requests {
            text += &format!("searchmill_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}\n");
        }
        text += &head("searchmill_request_seconds", "histogram", "Latency of requests in seconds.");
        for (route, latencies) in &counts.latencies {
            text += &latencies.text("searchmill_request_seconds", &format!("route=\"{route}\","), &SECONDS);
        }
        text += &head("searchmill_waiting_queries", "gauge", "Queries that wait for a search.");
        text += &format!("searchmill_waiting_queries {waiting}\n");
        if let Some(episodes) = episodes {
            text += &head("searchmill_open_episodes", "gauge", "Episodes that are kept.");
            text += &format!("searchmill_open_episodes {episodes}\n");
        }
        text += &head("searchmill_batch_queries", "histogram", "Queries per search.");
        text + &counts.batches.text("searchmill_batch_queries", "", &QUERIES)
    }
}

fn head(name: &str, kind: &str, about: &str) -> String {
    format!("# HELP {name} {about}\n# TYPE {name} {kind}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_in_every_bucket_above_them() {
        let metrics = Metrics::default();
        metrics.searched(1);
        metrics.searched(3);
        metrics.searched(9000);
        metrics.answered("/search", 200, Duration::from_millis(3));
        let text = metrics.text(7, Some(2));
        for line in [
            "searchmill_requests_total{route=\"/search\",status=\"200\"} 1",
            "searchmill_request_seconds_bucket{route=\"/search\",le=\"0.0025\"} 0",
            "searchmill_request_seconds_bucket{route=\"/search\",le=\"0.005\"} 1",
            "searchmill_request_seconds_count{route=\"/search\"} 1",
            "searchmill_waiting_queries 7",
            "searchmill_open_episodes 2",
            "searchmill_batch_queries_bucket{le=\"1\"} 1",
            "searchmill_batch_queries_bucket{le=\"4\"} 2",
            "searchmill_batch_queries_bucket{le=\"4096\"} 2",
            "searchmill_batch_queries_bucket{le=\"+Inf\"} 3",
            "searchmill_batch_queries_sum 9004",
            "searchmill_batch_queries_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
