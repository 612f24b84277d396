//! What all routes share: the indexes, the limits, the journal, the environment of episodes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_retrieval::{Found, Numbered};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use super::episodes::driver::Searching;
use super::episodes::sessions::World;
use super::mcp::streams::Streams;
use super::metrics::Metrics;
use super::problem::Problem;
use super::retriever::index::{Index, Opened, Served};
use super::retriever::journal::Journal;
use super::retriever::ranking::Ranking;

/// Limits of requests.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Documents per query for requests that do not set it (`None`: the route's own number).
    pub(crate) top_k: Option<usize>,
    /// Maximum number of documents per query.
    pub(crate) max_top_k: usize,
    /// Maximum number of queries per request.
    pub(crate) max_queries: usize,
    /// Maximum number of documents per request: queries × documents per query.
    pub(crate) max_documents: usize,
    /// Maximum number of waiting queries.
    pub(crate) queue: usize,
    /// Maximum size of a body, or of a message of a WebSocket, in bytes.
    pub(crate) max_body: usize,
}

/// What a server serves.
pub(crate) struct Setup {
    pub(crate) opened: Opened,
    pub(crate) limits: Limits,
    pub(crate) world: Option<World>,
    pub(crate) journal: Option<Journal>,
    pub(crate) ranking: Option<Ranking>,
}

impl Setup {
    /// Starts the search; returns the requests to open the indexes again, too.
    pub(super) fn start(self) -> std::io::Result<(Arc<Env>, mpsc::Receiver<Reload>)> {
        let Self { opened, limits, world, journal, ranking } = self;
        let metrics = Arc::new(Metrics::default());
        let index = RwLock::new(Arc::new(Index::start(opened, limits.queue, Arc::clone(&metrics))?));
        let (reloads, asked) = mpsc::channel(1);
        let (streams, closing) = (Streams::default(), watch::Sender::new(false));
        let (draining, active) = (AtomicBool::new(false), AtomicUsize::new(0));
        let env = Env { index, metrics, limits, world, reloads, streams, journal, ranking, closing, draining, active };
        Ok((Arc::new(env), asked))
    }
}

/// A request to open the indexes again, and where its outcome goes.
pub(super) type Reload = oneshot::Sender<Result<bool, String>>;

/// State of the server.
pub(super) struct Env {
    index: RwLock<Arc<Index>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) limits: Limits,
    pub(super) world: Option<World>,
    pub(super) reloads: mpsc::Sender<Reload>,
    pub(super) streams: Streams,
    journal: Option<Journal>,
    ranking: Option<Ranking>,
    closing: watch::Sender<bool>,
    draining: AtomicBool,
    active: AtomicUsize,
}

/// Counts a request or a connection as active until it is dropped.
pub(super) struct Active(Arc<Env>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Env {
    /// Counts a request as active. `None` if the server is shutting down.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Active> {
        // Counted before the question: `drain` may begin in between, and then waits for this one.
        self.active.fetch_add(1, Ordering::SeqCst);
        let active = Active(Arc::clone(self));
        if self.draining.load(Ordering::SeqCst) { None } else { Some(active) }
    }

    /// Rejects new requests, ends open streams, and waits for the active requests.
    pub(super) async fn drain(&self) {
        // In this order: a client whose stream ends cannot open another one.
        self.draining.store(true, Ordering::SeqCst);
        self.closing.send_replace(true);
        while self.active.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the server shuts down. For connections that stay open.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closing = self.closing.subscribe();
        async move {
            // An error means that the server is gone.
            drop(closing.wait_for(|closing| *closing).await);
        }
    }

    /// Returns the indexes in use now.
    pub(super) fn index(&self) -> Arc<Index> {
        Arc::clone(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the indexes. Requests that have begun finish with the earlier ones.
    pub(super) fn replace(&self, index: Index) {
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(index);
    }

    /// Returns the environment of episodes.
    ///
    /// # Errors
    /// Fails if the server has none.
    pub(super) fn world(&self) -> Result<&World, Problem> {
        let Some(world) = &self.world else {
            let detail = "this server has no episodes: start it with `--questions QUESTIONS`, or `--episodes FILE`";
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        };
        Ok(world)
    }

    /// Returns the view of a request that begins now.
    pub(super) fn view(self: &Arc<Self>, route: &'static str) -> View {
        View { env: Arc::clone(self), index: self.index(), route }
    }
}

/// The server as one request sees it: with the same indexes from its begin to its end.
#[derive(Clone)]
pub(super) struct View {
    pub(super) env: Arc<Env>,
    pub(super) index: Arc<Index>,
    route: &'static str,
}

impl<S: Send + Sync> FromRequestParts<S> for View {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.extensions.get::<Self>() {
            Some(view) => Ok(view.clone()),
            None => Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request has no index")),
        }
    }
}

impl View {
    /// Returns the number of documents per query. `field` is the request's name for it, `own` the route's default.
    pub(super) fn top_k(&self, field: &str, given: Option<i64>, own: usize) -> Result<usize, Problem> {
        let limits = &self.env.limits;
        // A default is capped; a number that the client sent is rejected rather than changed.
        let Some(given) = given else { return Ok(limits.top_k.unwrap_or(own).min(limits.max_top_k)) };
        let most = limits.max_top_k;
        match usize::try_from(given) {
            Ok(count) if (1..=most).contains(&count) => Ok(count),
            _ => Err(Problem::bad(format!("`{field}` must be between 1 and {most}, found {given}"))),
        }
    }

    /// Checks the messages of one request, which search for this many documents together.
    ///
    /// # Errors
    /// Fails if a limit of requests is exceeded.
    pub(super) fn check_batch(&self, messages: usize, documents: usize) -> Result<(), Problem> {
        let limits = &self.env.limits;
        if messages > limits.max_queries {
            return too_large(format!("found {messages} messages in one request (limit {})", limits.max_queries));
        }
        if documents > limits.max_documents {
            let most = limits.max_documents;
            return too_large(format!("the searches of one request ask for {documents} documents (limit {most})"));
        }
        Ok(())
    }

    /// Searches for the queries, and writes them to the journal. A blank query finds nothing in a BM25 index.
    pub(super) async fn search(&self, queries: Vec<String>, top_k: usize) -> Result<Vec<Vec<Numbered>>, Problem> {
        let limits = &self.env.limits;
        if queries.len() > limits.max_queries {
            let most = limits.max_queries;
            return too_large(format!("found {} queries in one request (limit {most})", queries.len()));
        }
        if queries.len().saturating_mul(top_k) > limits.max_documents {
            let (asked, most) = (queries.len(), limits.max_documents);
            return too_large(format!("{asked} queries × {top_k} documents are more than {most} (limit)"));
        }
        let Some(journal) = &self.env.journal else { return self.ranked(queries, top_k).await };
        let found = self.ranked(queries.clone(), top_k).await;
        // Before the answer leaves: no client has results that the journal lacks.
        journal.write(self.route, &self.index.text, &queries, top_k, &found)?;
        found
    }

    /// Searches; the reranker orders what was found.
    async fn ranked(&self, queries: Vec<String>, top_k: usize) -> Result<Vec<Vec<Numbered>>, Problem> {
        match &self.env.ranking {
            None => self.index.queue.search(queries, top_k).await,
            Some(ranking) => {
                let found = self.index.queue.search(queries.clone(), top_k.max(ranking.pool)).await?;
                ranking.rank(queries, found, top_k).await
            }
        }
    }

    /// Returns the environment of episodes, as [`Env::world`].
    pub(super) fn world(&self) -> Result<&World, Problem> {
        self.env.world()
    }
}

impl Searching for View {
    fn find(&self, queries: Vec<String>, top_k: usize) -> BoxFuture<'_, Result<Vec<Vec<Numbered>>, Problem>> {
        self.search(queries, top_k).boxed()
    }
}

fn too_large<T>(detail: String) -> Result<T, Problem> {
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail))
}

/// Returns title and text of a chunk, each on one line, as in a TSV file.
pub(super) fn lines(found: &Found) -> (String, String) {
    const BREAKS: [char; 3] = ['\n', '\r', '\t'];
    let (title, text) = found.parts();
    // The wiki corpus of Search-R1 writes titles in quotation marks.
    (title.trim_matches('"').replace(BREAKS, " "), text.replace(BREAKS, " "))
}

/// Returns what a served index is, for answers that list them.
pub(super) fn described(index: &Index) -> Value {
    let served = index.served.iter();
    served.map(|Served { name, digest, chunks }| json!({"chunks": chunks, "digest": digest, "name": name})).collect()
}
