//! Queue of waiting queries: a thread takes all that wait and searches them as one batch. An idle thread starts on a
//! query without delay; queries that arrive during a search share the next one.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use axum::http::StatusCode;
use searchmill_retrieval::{Numbered, Search};
use tokio::sync::oneshot;

use crate::serve::env::metrics::Metrics;
use crate::serve::env::problem::Problem;

/// Maximum number of queries per search, unless a single request has more. It bounds the wait of later requests.
const BATCH: usize = 4096;

type Lists = Result<Vec<Vec<Numbered>>, String>;

/// Queries of one request.
struct Job {
    queries: Vec<String>,
    top_k: usize,
    answer: oneshot::Sender<Lists>,
}

/// State shared with the thread.
#[derive(Default)]
struct Shared {
    waiting: AtomicUsize,
    busy: AtomicBool,
}

/// The queue of one opened search.
pub(crate) struct Queue {
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    capacity: usize,
}

impl Queue {
    /// Starts the thread that searches. At most `capacity` queries wait.
    pub(crate) fn start(search: Search, capacity: usize, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let worker = Worker { search, metrics, shared: Arc::clone(&shared) };
        std::thread::Builder::new().name("search".to_owned()).spawn(move || worker.run(&waiting))?;
        Ok(Self { jobs, shared, capacity })
    }

    /// Returns the number of waiting queries.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// Whether no search is in progress.
    pub(super) fn is_idle(&self) -> bool {
        !self.shared.busy.load(Ordering::Relaxed)
    }

    /// Searches for the queries and returns at most `top_k` chunks for each.
    ///
    /// # Errors
    /// Fails if the queue is full or an index cannot be read.
    pub(crate) async fn search(&self, queries: Vec<String>, top_k: usize) -> Result<Vec<Vec<Numbered>>, Problem> {
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        self.enter(queries.len())?;
        let (answer, answered) = oneshot::channel();
        let count = queries.len();
        let problem = if self.jobs.send(Job { queries, top_k, answer }).is_ok() {
            match answered.await {
                Ok(Ok(lists)) => return Ok(lists),
                Ok(Err(problem)) => Some(problem),
                Err(_) => None,
            }
        } else {
            // The thread counts down what it takes: it will not take these.
            self.shared.waiting.fetch_sub(count, Ordering::Relaxed);
            None
        };
        let detail = problem.unwrap_or_else(|| "the search has stopped; restart the server".to_owned());
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail))
    }

    /// Counts queries as waiting if they fit. An empty queue takes any number.
    fn enter(&self, queries: usize) -> Result<(), Problem> {
        // Counted and compared in one step: two requests at the same time must not both take the last slots.
        let entered = self.shared.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            let sum = waiting.saturating_add(queries);
            // A request larger than the whole queue could never enter otherwise.
            if waiting == 0 || sum <= self.capacity { Some(sum) } else { None }
        });
        let Err(waiting) = entered else { return Ok(()) };
        let detail = format!("{waiting} queries are waiting (limit {}); try again later", self.capacity);
        Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail))
    }
}

struct Worker {
    search: Search,
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
}

impl Worker {
    /// Searches until the queue is dropped.
    fn run(self, arriving: &mpsc::Receiver<Job>) {
        let mut jobs = VecDeque::new();
        while let Ok(job) = arriving.recv() {
            jobs.push_back(job);
            // Jobs with another `top_k` stay in `jobs`, in front of those that arrive later.
            while !jobs.is_empty() {
                jobs.extend(arriving.try_iter());
                let batch = next_batch(&mut jobs);
                self.shared.busy.store(true, Ordering::Relaxed);
                self.answer(batch);
                self.shared.busy.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Searches for the queries of jobs with one `top_k`.
    fn answer(&self, mut batch: Vec<Job>) {
        let queries: usize = batch.iter().map(|job| job.queries.len()).sum();
        // Before the search: the places are free for queries that arrive during it.
        self.shared.waiting.fetch_sub(queries, Ordering::Relaxed);
        // Its client has hung up.
        batch.retain(|job| !job.answer.is_closed());
        let Some(top_k) = batch.first().map(|job| job.top_k) else { return };
        let texts: Vec<&str> = batch.iter().flat_map(|job| &job.queries).map(String::as_str).collect();
        self.metrics.searched(texts.len());
        // A panic fails these requests, not all that follow.
        let searched = std::panic::catch_unwind(AssertUnwindSafe(|| self.search.search_numbered(&texts, top_k)));
        let mut found = match searched {
            Ok(Ok(found)) => Ok(found.into_iter()),
            Ok(Err(error)) => Err(error.text()),
            Err(_) => Err("the search has failed".to_owned()),
        };
        for job in batch {
            let own = match &mut found {
                Ok(lists) => Ok(lists.by_ref().take(job.queries.len()).collect()),
                Err(problem) => Err(problem.clone()),
            };
            // A failure means that the client has hung up.
            drop(job.answer.send(own));
        }
    }
}

/// Takes the first job and the others with its `top_k`, in their order, up to [`BATCH`] queries.
fn next_batch(jobs: &mut VecDeque<Job>) -> Vec<Job> {
    let top_k = jobs.front().map(|job| job.top_k);
    let (mut batch, mut queries) = (Vec::new(), 0);
    for job in std::mem::take(jobs) {
        if Some(job.top_k) == top_k && (batch.is_empty() || queries + job.queries.len() <= BATCH) {
            queries += job.queries.len();
            batch.push(job);
        } else {
            jobs.push_back(job);
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_one_top_k_and_keeps_the_order() {
        let job = |top_k: usize, queries: usize| Job {
            queries: vec![String::new(); queries],
            top_k,
            answer: oneshot::channel().0,
        };
        let mut jobs: VecDeque<Job> =
            [(3, 5000), (3, 1), (5, 1), (3, 4095), (3, 2)].into_iter().map(|(k, n)| job(k, n)).collect();
        let mut taken = Vec::new();
        while !jobs.is_empty() {
            let batch = next_batch(&mut jobs);
            taken.push(batch.iter().map(|job| (job.top_k, job.queries.len())).collect::<Vec<_>>());
        }
        assert_eq!(taken, [vec![(3, 5000)], vec![(3, 1), (3, 4095)], vec![(5, 1)], vec![(3, 2)]]);
    }
}
