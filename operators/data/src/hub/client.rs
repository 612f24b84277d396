//! HTTP client of the Hugging Face Hub: endpoint, cache folder, requests and downloads.
//!
//! Reads `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN` and `HF_HUB_OFFLINE`. The cache has the layout of
//! Python's `huggingface_hub` (`models--ORG--NAME` and `datasets--ORG--NAME`, each with `refs`, `blobs` and
//! `snapshots`), so both share it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode, Version};
use searchmill_engine::operator::{Context, OperatorError};

use crate::source::store::setting;

/// Maximum length of the Hub's words in a message, in characters.
const MOST_WORDS: usize = 300;

/// The Hub's endpoint and its local cache.
#[derive(Clone, Debug)]
pub struct Hub {
    pub(super) endpoint: String,
    pub(super) cache: PathBuf,
    pub(super) token: Option<String>,
    pub(super) offline: bool,
}

impl Hub {
    /// A Hub at the given endpoint with its cache in the given folder.
    pub fn new(endpoint: &str, cache: PathBuf, token: Option<String>) -> Self {
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), cache, token, offline: false }
    }

    /// Reads the Hub's settings from the environment.
    pub fn from_environment() -> Self {
        // In the order of `huggingface_hub`.
        let cache = if let Some(cache) = setting("HF_HUB_CACHE") {
            PathBuf::from(cache)
        } else if let Some(home) = setting("HF_HOME") {
            PathBuf::from(home).join("hub")
        } else if let Some(cache) = setting("XDG_CACHE_HOME") {
            PathBuf::from(cache).join("huggingface/hub")
        } else if let Some(home) = std::env::home_dir() {
            home.join(".cache/huggingface/hub")
        } else {
            std::env::temp_dir().join("huggingface/hub")
        };
        let endpoint = setting("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let offline = setting("HF_HUB_OFFLINE").is_some_and(|value| value != "0");
        Self { offline, ..Self::new(&endpoint, cache, setting("HF_TOKEN")) }
    }

    /// Sends a request. Retries connection failures, timeouts, server errors and status 429.
    pub(super) async fn get(&self, url: &str, context: &Context) -> reqwest::Result<Response> {
        let retry = context.retry();
        let mut attempt = 1;
        loop {
            let request = client()?.get(url);
            let sent = match &self.token {
                Some(token) => request.bearer_auth(token).send().await,
                None => request.send().await,
            };
            let again = match &sent {
                Ok(answer) => answer.status().is_server_error() || answer.status() == StatusCode::TOO_MANY_REQUESTS,
                Err(error) => error.is_connect() || error.is_timeout(),
            };
            // When the run is stopped, the caller reports what was sent, without a wait.
            if !again || attempt >= retry.max_attempts || context.check_cancelled().is_err() {
                return sent;
            }
            attempt += 1;
            tokio::time::sleep(retry.wait(attempt, None)).await;
        }
    }
}

/// Returns the Hub's own words about a failure, as the end of a message.
pub(super) fn words(response: &Response) -> String {
    match response.headers().get("x-error-message").map(HeaderValue::to_str) {
        Some(Ok(said)) if !said.is_empty() => format!(": {}", said.chars().take(MOST_WORDS).collect::<String>()),
        _ => String::new(),
    }
}

/// Returns the HTTP client. It follows redirects to other hosts; the token is sent to the first host only.
fn client() -> reqwest::Result<&'static Client> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // A connection belongs to the runtime that opened it, so none is pooled.
    let client = Client::builder().pool_max_idle_per_host(0).build()?;
    Ok(CLIENT.get_or_init(|| client))
}

/// Downloads a response into a file, which appears only when it is complete. A body without a length must be of the size
/// that the Hub names: a connection that is cut would look like its end.
pub(super) async fn download(
    mut response: Response,
    path: &Path,
    shown: &str,
    context: &Context,
) -> Result<(), OperatorError> {
    let mut file = tempfile::NamedTempFile::new_in(parent(path)?)?;
    let named = size(response.headers(), "x-linked-size").or_else(|| size(response.headers(), "content-length"));
    // Chunks and HTTP/2 mark the end of a body, so that a cut is an error of the connection.
    let shows_end = response.headers().contains_key("transfer-encoding") || response.version() >= Version::HTTP_2;
    if named.is_none() && !shows_end {
        let message = format!("the server does not say how long `{shown}` is, so that a cut could not be noticed");
        let help = "download the file by other means, and read it from disk";
        return Err(OperatorError::machine(message).with_help(help));
    }
    let mut found = 0;
    loop {
        let chunk = response.chunk().await;
        let chunk =
            chunk.map_err(|error| OperatorError::machine(format!("download of `{shown}` was interrupted: {error}")))?;
        let Some(bytes) = chunk else { break };
        context.check_cancelled()?;
        file.write_all(&bytes)?;
        found += bytes.len() as u64;
    }
    if let Some(wanted) = named
        && wanted != found
    {
        let message = format!("the download of `{shown}` ended after {found} of {wanted} bytes");
        return Err(OperatorError::machine(message).with_help("run it again"));
    }
    persist(file, path)
}

fn size(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Writes a small file, which appears only when it is complete.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), OperatorError> {
    let mut file = tempfile::NamedTempFile::new_in(parent(path)?)?;
    file.write_all(bytes)?;
    persist(file, path)
}

/// Renames a complete file into place: other processes use the same cache meanwhile.
fn persist(file: tempfile::NamedTempFile, path: &Path) -> Result<(), OperatorError> {
    match file.persist(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(OperatorError::machine(format!("cannot write {}: {}", path.display(), error.error))),
    }
}

/// Returns the folder of a file, creating it if needed.
pub(super) fn parent(path: &Path) -> std::io::Result<&Path> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs_err::create_dir_all(folder)?;
    Ok(folder)
}

/// Returns the commit of a revision from the local cache: the revision itself if it is a commit, else the commit cached
/// for the branch or tag.
pub(super) fn cached_commit(repository: &Path, revision: &str) -> Option<String> {
    if is_commit(revision) {
        return Some(revision.to_owned());
    }
    let noted = std::fs::read_to_string(repository.join("refs").join(revision)).ok()?;
    let commit = noted.trim();
    // It becomes part of a path.
    if is_name(commit) { Some(commit.to_owned()) } else { None }
}

pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a text is safe as part of a repository name, a revision or a path.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.chars().all(|ch| ch.is_ascii_alphanumeric() || matches!(ch, '-' | '_' | '.'))
}
