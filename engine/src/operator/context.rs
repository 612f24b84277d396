//! The context of an operator: seed, cancellation, scratch space, progress, secrets, HTTP, threads.

use std::borrow::Cow;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::params::Secret;
use super::repeatability::{Computed, Repeatability};
use super::sources::SourceFiles;
use crate::endpoint::{EndpointSession, Redactor};
use crate::error::OperatorError;

/// Number and timing of retries of an external call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Attempts, the first included.
    pub max_attempts: u32,
    /// Wait before the second attempt; doubles each time, up to `max_backoff`.
    pub backoff: Duration,
    /// Longest wait, also for `Retry-After`.
    pub max_backoff: Duration,
    /// Calls in a row that fail for good, after which the node makes no more calls (0: never).
    pub stop_after: u32,
    /// Whether the pipeline states it. What may fail for good is not repeated by default.
    #[serde(default)]
    pub stated: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let (backoff, max_backoff) = (Duration::from_secs(1), Duration::from_mins(1));
        Self { max_attempts: 3, backoff, max_backoff, stop_after: 8, stated: false }
    }
}

impl RetryPolicy {
    /// Returns the wait before attempt `next` (2, 3, …): at least the wait requested by the server, at most
    /// `max_backoff`.
    pub fn wait(&self, next: u32, retry_after: Option<Duration>) -> Duration {
        // Beyond that, the wait is `max_backoff` anyway, and the shift must not overflow.
        let doublings = next.saturating_sub(2).min(20);
        let own = self.backoff.saturating_mul(1 << doublings);
        own.max(retry_after.unwrap_or_default()).min(self.max_backoff)
    }
}

/// A call that is repeated.
#[derive(Clone, Debug)]
pub struct Retry<'a> {
    /// Number of the next attempt, from 2.
    pub attempt: u32,
    /// Number of attempts (at most).
    pub of: u32,
    /// Time until then.
    pub wait: Duration,
    /// HTTP status, or kind of failure, of the last attempt.
    pub reason: String,
    /// Its error message.
    pub message: &'a str,
}

/// Receives progress; implemented by the driver. Cheap to call often. By default, nobody listens.
pub trait ProgressSink: Send + Sync {
    /// Reports `done` of `total` units (`total` 0: unknown).
    fn set(&self, _done: u64, _total: u64, _unit: &str) {}

    /// Reports that an earlier run did this many of the units: they say nothing about the rate of this one.
    fn resumed(&self, _done: u64) {}

    /// Adds a line to the log of this node.
    fn log(&self, _line: &str) {}

    /// Reports that a call is repeated.
    fn retried(&self, _retry: &Retry<'_>) {}
}

/// Stores the state of a long computation, so that it can resume after a crash; implemented by the store.
pub trait CheckpointStore: Send + Sync {
    /// Returns the last state saved by an unfinished run of the same node (same key).
    ///
    /// # Errors
    /// Fails if a saved state cannot be read.
    fn load(&self) -> Result<Option<Vec<u8>>, OperatorError>;
    /// Replaces the saved state. After a crash, either the old or the new state exists in full.
    ///
    /// # Errors
    /// Fails if the state cannot be written.
    fn save(&self, state: &[u8]) -> Result<(), OperatorError>;
}

/// Pieces of a node's work computed earlier, by this run or another. For kernels that assemble many independent pieces,
/// such as the vectors of an index. Implemented by the store, under the node's identity without its first input: a
/// piece must depend on that identity and its content alone.
pub trait Pieces: Send + Sync {
    /// Returns the piece stored for that content.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    fn find(&self, content: &[u8]) -> Result<Option<Vec<u8>>, OperatorError>;
    /// Stores the piece made from `content`; it survives the process.
    ///
    /// # Errors
    /// Fails if the piece cannot be written.
    fn keep(&self, content: &[u8], made: &[u8]) -> Result<(), OperatorError>;
}

/// What a context has without a driver: it reports nothing, saves nothing, and knows neither pieces nor sources.
pub struct Nothing;

impl ProgressSink for Nothing {}

impl CheckpointStore for Nothing {
    fn load(&self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(None)
    }

    fn save(&self, _state: &[u8]) -> Result<(), OperatorError> {
        Ok(())
    }
}

impl Pieces for Nothing {
    fn find(&self, _content: &[u8]) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(None)
    }

    fn keep(&self, _content: &[u8], _made: &[u8]) -> Result<(), OperatorError> {
        Ok(())
    }
}

impl SourceFiles for Nothing {
    fn files(&self, _written: &str) -> Option<Vec<PathBuf>> {
        None
    }
}

/// Creates an HTTP client for endpoints with an unlimited number of idle connections per host. It follows no redirects:
/// a call goes only to the host named by the pipeline.
///
/// # Errors
/// Fails if the system's certificates cannot be used.
pub fn http_client() -> Result<reqwest::Client, OperatorError> {
    let client = reqwest::Client::builder().pool_max_idle_per_host(usize::MAX);
    let client = client.redirect(reqwest::redirect::Policy::none()).build();
    client.map_err(|error| OperatorError::machine(format!("cannot create an HTTP client: {error}")))
}

/// Looks a secret up by name.
pub type SecretLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The parts of a [`Context`], provided by the driver.
pub struct ContextParts {
    /// Seed of the node (default 0).
    pub seed: u64,
    /// Set when the run is cancelled.
    pub cancelled: Arc<AtomicBool>,
    /// Path at which a folder for temporary files may be created; removed afterwards.
    pub scratch: PathBuf,
    /// Base of relative paths.
    pub directory: PathBuf,
    /// Threads this node may use.
    pub threads: usize,
    /// Memory in bytes this node may use before it spills, if limited.
    pub memory: Option<u64>,
    /// Number of GPUs the node may use: the first ones visible to the driver.
    pub gpus: u32,
    /// Rows in flight of an external node.
    pub concurrency: usize,
    /// Number of processes that work for the node, if the pipeline states it (`concurrency`, else `threads`).
    pub processes: Option<usize>,
    /// Retry policy of external calls.
    pub retry: RetryPolicy,
    /// Looks a secret up by name.
    pub secrets: SecretLookup,
    /// The runtime for asynchronous work.
    pub runtime: tokio::runtime::Handle,
    /// Receives progress.
    pub progress: Arc<dyn ProgressSink>,
    /// The shared HTTP client (connection pool): [`http_client`].
    pub http: reqwest::Client,
    /// Saves the node's state while it computes.
    pub checkpoint: Arc<dyn CheckpointStore>,
    /// Known pieces of the node's work.
    pub pieces: Arc<dyn Pieces>,
    /// External files, as the node's key saw them.
    pub sources: Arc<dyn SourceFiles>,
}

impl ContextParts {
    /// Returns parts with [`Nothing`] behind them: one thread, one row in flight, the CPU, no secrets.
    pub fn bare(directory: &Path, runtime: &tokio::runtime::Handle, http: reqwest::Client) -> Self {
        Self {
            seed: 0,
            cancelled: Arc::default(),
            scratch: std::env::temp_dir(),
            directory: directory.to_owned(),
            threads: 1,
            memory: None,
            gpus: 0,
            concurrency: 1,
            processes: None,
            retry: RetryPolicy::default(),
            secrets: Arc::new(|_| None),
            runtime: runtime.clone(),
            progress: Arc::new(Nothing),
            http,
            checkpoint: Arc::new(Nothing),
            pieces: Arc::new(Nothing),
            sources: Arc::new(Nothing),
        }
    }
}

/// The context of an operator. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<ContextParts>, EndpointSession, Arc<Mutex<Computed>>, Option<Arc<AtomicBool>>);

impl Context {
    /// Creates a context from its parts.
    pub fn new(parts: ContextParts) -> Self {
        let computed = Computed::declared(Repeatability::Everywhere);
        Self(Arc::new(parts), EndpointSession::default(), Arc::new(Mutex::new(computed)), None)
    }

    /// Adds the flag that is set when the run is draining.
    #[must_use]
    pub(crate) fn with_drain(self, draining: Arc<AtomicBool>) -> Self {
        Self(self.0, self.1, self.2, Some(draining))
    }

    /// Adds the endpoint session: budget, limits, known calls.
    #[must_use]
    pub(crate) fn with_session(mut self, session: EndpointSession) -> Self {
        self.1 = session;
        self
    }

    /// Returns the endpoint session.
    pub(crate) fn session(&self) -> &EndpointSession {
        &self.1
    }

    /// Lowers the repeatability of the result to `computed`, if that is weaker.
    pub fn computed_on(&self, computed: Computed) {
        let mut known = self.2.lock().unwrap_or_else(PoisonError::into_inner);
        // Only ever weaker: threads of a kernel report in any order.
        *known = known.clone().and(computed);
    }

    /// Returns the repeatability recorded so far.
    pub fn computed(&self) -> Computed {
        self.2.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the seed of this node.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Whether the run was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    /// Whether the run is draining. Long work that can resume later saves its state and ends with
    /// [`OperatorError::cancelled`]; other work finishes.
    pub fn is_draining(&self) -> bool {
        self.is_cancelled() || self.3.as_ref().is_some_and(|draining| draining.load(Ordering::Relaxed))
    }

    /// Fails if the run was cancelled; call it in long loops.
    ///
    /// # Errors
    /// Fails with [`OperatorError::cancelled`].
    pub fn check_cancelled(&self) -> Result<(), OperatorError> {
        if self.is_cancelled() { Err(OperatorError::cancelled()) } else { Ok(()) }
    }

    /// Returns a path for temporary files. The folder does not exist until created, and is removed afterwards.
    pub fn scratch(&self) -> &Path {
        &self.0.scratch
    }

    /// Makes a user's path absolute; relative paths start at the working directory.
    pub fn resolve(&self, path: &str) -> PathBuf {
        self.0.directory.join(path)
    }

    /// Returns the number of threads this node may use.
    pub fn threads(&self) -> usize {
        self.0.threads.max(1)
    }

    /// Returns the memory in bytes this node may use before it spills, if limited.
    pub fn memory(&self) -> Option<u64> {
        self.0.memory
    }

    /// Returns the number of GPUs this node may use; 0: compute on the CPU.
    pub fn gpus(&self) -> u32 {
        self.0.gpus
    }

    /// Returns the number of rows in flight of an external node.
    pub fn concurrency(&self) -> usize {
        self.0.concurrency.max(1)
    }

    /// Returns the number of processes that work for this node, if the pipeline states it.
    pub fn processes(&self) -> Option<usize> {
        self.0.processes
    }

    /// Returns the retry policy of external calls.
    pub fn retry(&self) -> RetryPolicy {
        self.0.retry
    }

    /// Returns the value of a secret.
    ///
    /// # Errors
    /// Fails if the secret is not set.
    pub fn secret(&self, secret: &Secret) -> Result<String, OperatorError> {
        let Some(name) = secret.name() else {
            return Err(OperatorError::pipeline("a secret must be written `${secret:NAME}`"));
        };
        let Some(value) = (self.0.secrets)(name) else {
            let error = OperatorError::machine(format!("the secret `{name}` is not set"));
            return Err(error.with_help(format!("set the environment variable {name}")));
        };
        // Before anyone can send it: a server may repeat it in its answer.
        self.redactor().learn(name, &value);
        Ok(value)
    }

    /// Returns the redactor of the run's secrets. Rejects, messages and log lines are redacted anyway; kernels should
    /// redact what they store of a server's answer.
    pub fn redactor(&self) -> &Redactor {
        &self.1.redactor
    }

    /// Returns the shared HTTP client. It follows no redirects.
    pub fn http(&self) -> &reqwest::Client {
        &self.0.http
    }

    /// Returns the store of this node's saved state: it survives the process, and is deleted once the result is
    /// recorded.
    pub fn checkpoint(&self) -> &dyn CheckpointStore {
        self.0.checkpoint.as_ref()
    }

    /// Returns a piece of this node's work that was computed earlier, on a GPU of the same model if on a GPU.
    ///
    /// # Errors
    /// Fails if the pieces cannot be read.
    pub fn find_piece(&self, content: &[u8]) -> Result<Option<Vec<u8>>, OperatorError> {
        self.0.pieces.find(&self.on_its_device(content))
    }

    /// Stores a piece made from `content`; it survives the process.
    ///
    /// # Errors
    /// Fails if the piece cannot be written.
    pub fn keep_piece(&self, content: &[u8], made: &[u8]) -> Result<(), OperatorError> {
        self.0.pieces.keep(&self.on_its_device(content), made)
    }

    fn on_its_device<'a>(&self, content: &'a [u8]) -> Cow<'a, [u8]> {
        match self.computed() {
            // What one device computed may differ in bytes from what another one does.
            Computed { repeats: Repeatability::Device, on } => [on.as_bytes(), b"\0", content].concat().into(),
            _ => content.into(),
        }
    }

    /// Returns the local files behind one of this node's sources, as its key saw them; `None`: the key has no such
    /// source. Read only these files.
    pub fn source_files(&self, written: &str) -> Option<Vec<PathBuf>> {
        self.0.sources.files(written)
    }

    /// Whether this node's key covers a file, or the list of a folder; `None`: there is no key.
    pub fn covers(&self, path: &Path) -> Option<bool> {
        self.0.sources.covers(path)
    }

    /// Wraps the bytes of such a file: while they are read to their end, they are compared with what the key saw.
    pub fn watched(&self, path: &Path, bytes: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        Arc::clone(&self.0.sources).watched(path, bytes)
    }

    /// Returns the progress of this node.
    pub fn progress(&self) -> &dyn ProgressSink {
        self.0.progress.as_ref()
    }

    /// Runs asynchronous work from a blocking kernel. Never call it from asynchronous code.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.runtime.block_on(future)
    }
}
