//! The world as an operator sees it: seed, cancellation, scratch space, progress, secrets, HTTP, threads.

use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::endpoint_session::EndpointSession;
use super::error::OperatorError;
use super::params::Secret;
use super::redactor::Redactor;
use super::repeatability::{Computed, Repeatability};
use super::sources::SourceFiles;

/// How often and how patiently a call to the outside is repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// Wait before the second attempt; doubles each time, up to `max_backoff`.
    pub backoff: Duration,
    /// Longest wait, also for `Retry-After`.
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 3, backoff: Duration::from_secs(1), max_backoff: Duration::from_mins(1) }
    }
}

impl RetryPolicy {
    /// Wait before attempt `next` (2, 3, …), no shorter than what the server asked for.
    #[must_use]
    pub fn wait(&self, next: u32, retry_after: Option<Duration>) -> Duration {
        let doublings = next.saturating_sub(2).min(20);
        let own = self.backoff.saturating_mul(1 << doublings);
        own.max(retry_after.unwrap_or_default()).min(self.max_backoff)
    }
}

/// Where progress goes; implemented by the driver.
pub trait ProgressSink: Send + Sync {
    /// `done` of `total` units (`total` 0: unknown).
    fn progress(&self, done: u64, total: u64, unit: &str);
    /// A line for the log of this node.
    fn log(&self, line: &str);
}

/// Progress of one node. Cheap to call often.
#[derive(Clone)]
pub struct Progress(Arc<dyn ProgressSink>);

impl Progress {
    /// `done` of `total` units (`total` 0: unknown).
    pub fn set(&self, done: u64, total: u64, unit: &str) {
        self.0.progress(done, total, unit);
    }

    /// A line for the log of this node.
    pub fn log(&self, line: &str) {
        self.0.log(line);
    }
}

/// Where a long computation leaves its state, so that a killed one goes on where it was; implemented by the store.
pub trait CheckpointStore: Send + Sync {
    /// The state that was saved last by a run of the same node (same key) that did not finish.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    fn load(&self) -> Result<Option<Vec<u8>>, OperatorError>;
    /// Saves a state in place of the last one: after a crash, the one or the other is there, whole.
    ///
    /// # Errors
    /// When it cannot be written.
    fn save(&self, state: &[u8]) -> Result<(), OperatorError>;
}

/// Keeps no state.
pub struct NoCheckpoint;

impl CheckpointStore for NoCheckpoint {
    fn load(&self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(None)
    }

    fn save(&self, _state: &[u8]) -> Result<(), OperatorError> {
        Ok(())
    }
}

/// Pieces of a node's work that were computed before, by this run or another: for kernels that make one whole of many
/// pieces which do not depend on each other, such as the vectors of an index. Implemented by the store, under the node's
/// identity without its first input: what is kept must depend on that identity and the content alone.
pub trait Pieces: Send + Sync {
    /// What was kept for that content.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn find(&self, content: &[u8]) -> Result<Option<Vec<u8>>, OperatorError>;
    /// Keeps what was made of a content: it survives the death of the process.
    ///
    /// # Errors
    /// When it cannot be written.
    fn keep(&self, content: &[u8], made: &[u8]) -> Result<(), OperatorError>;
}

/// Keeps no pieces.
pub struct NoPieces;

impl Pieces for NoPieces {
    fn find(&self, _content: &[u8]) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(None)
    }

    fn keep(&self, _content: &[u8], _made: &[u8]) -> Result<(), OperatorError> {
        Ok(())
    }
}

/// An HTTP client for endpoints: as many open connections as there are calls. It follows no redirects: what a call holds
/// goes to the host that the pipeline names, and to no other.
///
/// # Errors
/// When the system's certificates cannot be used.
pub fn http_client() -> Result<reqwest::Client, OperatorError> {
    let client = reqwest::Client::builder().pool_max_idle_per_host(usize::MAX);
    let client = client.redirect(reqwest::redirect::Policy::none()).build();
    client.map_err(|error| OperatorError::machine(format!("no HTTP client can be made: {error}")))
}

/// Looks a secret up by name.
pub type SecretLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What the driver gives to make a [`Context`].
pub struct ContextParts {
    /// Seed of the node (given in the YAML or 0).
    pub seed: u64,
    /// Set when the run is told to stop.
    pub cancelled: Arc<AtomicBool>,
    /// Where a folder for temporary files may be made; removed afterwards.
    pub scratch: PathBuf,
    /// Relative paths start here.
    pub directory: PathBuf,
    /// Threads this node may use.
    pub threads: usize,
    /// Bytes of memory this node may use before it spills, if it was told.
    pub memory: Option<u64>,
    /// GPUs it may use: those that the driver shows first.
    pub gpus: u32,
    /// Rows in flight for external nodes.
    pub concurrency: usize,
    /// Repeats of outside calls.
    pub retry: RetryPolicy,
    /// Looks a secret up by name.
    pub secrets: SecretLookup,
    /// The runtime that asynchronous work runs on.
    pub runtime: tokio::runtime::Handle,
    /// Where progress goes.
    pub progress: Arc<dyn ProgressSink>,
    /// The shared HTTP client (connection pool): [`http_client`].
    pub http: reqwest::Client,
    /// Where the node leaves its state while it computes.
    pub checkpoint: Arc<dyn CheckpointStore>,
    /// Pieces of its work that are known.
    pub pieces: Arc<dyn Pieces>,
    /// Files outside the pipeline, as its key saw them.
    pub sources: Arc<dyn SourceFiles>,
}

/// The world as an operator sees it. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<ContextParts>, EndpointSession, Arc<Mutex<Computed>>, Option<Arc<AtomicBool>>);

impl Context {
    /// A context of those parts.
    #[must_use]
    pub fn new(parts: ContextParts) -> Self {
        let computed = Computed::declared(Repeatability::Everywhere);
        Self(Arc::new(parts), EndpointSession::default(), Arc::new(Mutex::new(computed)), None)
    }

    /// The same, with the flag that is set when the run winds down.
    #[must_use]
    pub(crate) fn with_drain(self, draining: Arc<AtomicBool>) -> Self {
        Self(self.0, self.1, self.2, Some(draining))
    }

    /// The same, with what the run shares about the outside: budget, limits, calls that are known.
    #[must_use]
    pub(crate) fn with_session(mut self, session: EndpointSession) -> Self {
        self.1 = session;
        self
    }

    /// What the run shares about the outside.
    #[must_use]
    pub(crate) fn session(&self) -> &EndpointSession {
        &self.1
    }

    /// Notes that the bytes of the result depend on what computes them: `computed.repeats` holds at most.
    pub fn computed_on(&self, computed: Computed) {
        let mut known = self.2.lock().unwrap_or_else(PoisonError::into_inner);
        *known = known.clone().and(computed);
    }

    /// What was noted so far.
    #[must_use]
    pub fn computed(&self) -> Computed {
        self.2.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Seed of this node.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Was the run told to stop?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    /// Does the run wind down? Long work that can go on later saves its state and ends with
    /// [`OperatorError::cancelled`]; other work goes on to its end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_cancelled() || self.3.as_ref().is_some_and(|draining| draining.load(Ordering::Relaxed))
    }

    /// Fails when the run was told to stop: call it in long loops.
    ///
    /// # Errors
    /// [`OperatorError::cancelled`].
    pub fn check_cancelled(&self) -> Result<(), OperatorError> {
        if self.is_cancelled() { Err(OperatorError::cancelled()) } else { Ok(()) }
    }

    /// Where temporary files may lie: a folder that is not there until somebody makes it, removed afterwards.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        &self.0.scratch
    }

    /// A path as the user wrote it, made absolute: relative ones start at the working directory.
    #[must_use]
    pub fn resolve(&self, path: &str) -> PathBuf {
        self.0.directory.join(path)
    }

    /// Threads this node may use.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.threads.max(1)
    }

    /// Bytes of memory this node may use before it spills, if it was told.
    #[must_use]
    pub fn memory(&self) -> Option<u64> {
        self.0.memory
    }

    /// GPUs this node may use; 0: compute on the CPU.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.0.gpus
    }

    /// Rows in flight, for external nodes.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.0.concurrency.max(1)
    }

    /// Repeats of outside calls.
    #[must_use]
    pub fn retry(&self) -> RetryPolicy {
        self.0.retry
    }

    /// The value of a secret.
    ///
    /// # Errors
    /// When it is not set.
    pub fn secret(&self, secret: &Secret) -> Result<String, OperatorError> {
        let name = secret.name().ok_or_else(|| OperatorError::pipeline("a secret must be written `${secret:NAME}`"))?;
        let value = (self.0.secrets)(name).ok_or_else(|| {
            OperatorError::machine(format!("the secret `{name}` is not set"))
                .with_help(format!("set the environment variable {name}"))
        })?;
        self.redactor().learn(name, &value);
        Ok(value)
    }

    /// Strikes the run's secrets out of texts from outside: rejects, messages and log lines pass through it anyway; what
    /// a kernel keeps of a server's answer should too.
    #[must_use]
    pub fn redactor(&self) -> &Redactor {
        &self.1.redactor
    }

    /// The shared HTTP client. It follows no redirects.
    #[must_use]
    pub fn http(&self) -> &reqwest::Client {
        &self.0.http
    }

    /// Where this node leaves its state while it computes: it outlives the process, and goes once the result is recorded.
    #[must_use]
    pub fn checkpoint(&self) -> &dyn CheckpointStore {
        self.0.checkpoint.as_ref()
    }

    /// Pieces of this node's work that were computed before.
    #[must_use]
    pub fn pieces(&self) -> &dyn Pieces {
        self.0.pieces.as_ref()
    }

    /// The local files behind one of this node's sources, as its key saw them; `None`: the key knows no such source. Read
    /// these and look for no others.
    #[must_use]
    pub fn source_files(&self, written: &str) -> Option<Vec<PathBuf>> {
        self.0.sources.files(written)
    }

    /// The bytes of such a file, compared with what the key saw while they are read to their end.
    #[must_use]
    pub fn watched(&self, path: &Path, bytes: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        Arc::clone(&self.0.sources).watched(path, bytes)
    }

    /// Progress of this node.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.0.progress))
    }

    /// Runs asynchronous work from a blocking kernel. Never call it from asynchronous code.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.runtime.block_on(future)
    }
}
