//! HTTP client of the Hugging Face Hub: endpoint, cache folder, requests and downloads.
//!
//! Reads `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN` and `HF_HUB_OFFLINE`. The cache has the layout of
//! Python's `huggingface_hub` (`models--ORG--NAME` and `datasets--ORG--NAME`, each with `refs`, `blobs` and
//! `snapshots`), so both share it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use reqwest::header::HeaderMap;
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
    token: Option<String>,
    pub(super) offline: bool,
}

impl Hub {
    /// A Hub at the given endpoint with its cache in the given folder.
    pub fn new(endpoint: &str, cache: PathBuf, token: Option<String>) -> Self {
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), cache, token, offline: false }
    }

    /// Reads the Hub's settings from the environment.
    pub fn from_environment() -> Self {
        let user =
            || setting("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cache")));
        let home = setting("HF_HOME").map(PathBuf::from).or_else(|| Some(user()?.join("huggingface")));
        let cache = setting("HF_HUB_CACHE").map(PathBuf::from).or_else(|| Some(home?.join("hub")));
        let cache = cache.unwrap_or_else(|| std::env::temp_dir().join("huggingface/hub"));
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
                Ok(response) => {
                    response.status().is_server_error() || response.status() == StatusCode::TOO_MANY_REQUESTS
                }
                Err(error) => error.is_connect() || error.is_timeout(),
            };
            if !again || attempt >= retry.max_attempts || context.check_cancelled().is_err() {
                return sent;
            }
            attempt += 1;
            tokio::time::sleep(retry.wait(attempt, None)).await;
        }
    }

    /// Whether requests carry a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }
}

/// Returns the Hub's own words about a failure, as the end of a message.
pub(super) fn words(response: &Response) -> String {
    let said = response.headers().get("x-error-message").and_then(|said| said.to_str().ok()).unwrap_or_default();
    if said.is_empty() { String::new() } else { format!(": {}", said.chars().take(MOST_WORDS).collect::<String>()) }
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
    let broken = |error| OperatorError::machine(format!("download of `{shown}` was interrupted: {error}"));
    let named = size(response.headers(), "x-linked-size").or_else(|| size(response.headers(), "content-length"));
    let shows_end = response.headers().contains_key("transfer-encoding") || response.version() >= Version::HTTP_2;
    if named.is_none() && !shows_end {
        let message = format!("the server does not say how long `{shown}` is, so that a cut could not be noticed");
        return Err(
            OperatorError::machine(message).with_help("download the file by other means, and read it from disk")
        );
    }
    let mut found = 0;
    while let Some(bytes) = response.chunk().await.map_err(broken)? {
        context.check_cancelled()?;
        file.write_all(&bytes)?;
        found += bytes.len() as u64;
    }
    if let Some(wanted) = named.filter(|wanted| *wanted != found) {
        let message = format!("the download of `{shown}` ended after {found} of {wanted} bytes");
        return Err(OperatorError::machine(message).with_help("run it again"));
    }
    file.persist(path).map_err(|error| OperatorError::from(error.error))?;
    Ok(())
}

fn size(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Writes a small file, which appears only when it is complete.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), OperatorError> {
    let mut file = tempfile::NamedTempFile::new_in(parent(path)?)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| OperatorError::from(error.error))?;
    Ok(())
}

/// Returns the folder of a file, creating it if needed.
pub(super) fn parent(path: &Path) -> std::io::Result<&Path> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    Ok(folder)
}

/// Returns the commit of a revision from the local cache: the revision itself if it is a commit, else the commit cached
/// for the branch or tag.
pub(super) fn cached_commit(repository: &Path, revision: &str) -> Option<String> {
    if is_commit(revision) {
        return Some(revision.to_owned());
    }
    let noted = std::fs::read_to_string(repository.join("refs").join(revision)).ok()?;
    Some(noted.trim().to_owned()).filter(|commit| is_name(commit))
}

pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a text is safe as part of a repository name, a revision or a path.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |ch: char| ch.is_ascii_alphanumeric() || matches!(ch, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}
