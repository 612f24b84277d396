//! The client of the Hugging Face Hub: where it is, where its files are kept, requests and downloads.
//!
//! `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN` and `HF_HUB_OFFLINE` are honoured. The cache has the layout of
//! Python's `huggingface_hub` (`models--ORG--NAME` and `datasets--ORG--NAME`, with `refs`, `blobs` and `snapshots` in
//! them), so that both share it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use reqwest::{Client, Response, StatusCode};
use searchmill_engine::operator::{Context, OperatorError};

use crate::source::store::setting;

/// Where the Hub is and where its files are kept.
#[derive(Clone, Debug)]
pub struct Hub {
    pub(super) endpoint: String,
    pub(super) cache: PathBuf,
    token: Option<String>,
    pub(super) offline: bool,
}

impl Hub {
    /// The Hub at that address, with its cache in that folder.
    #[must_use]
    pub fn new(endpoint: &str, cache: PathBuf, token: Option<String>) -> Self {
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), cache, token, offline: false }
    }

    /// The Hub as the environment describes it.
    #[must_use]
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

    /// Sends a request, again after failures of the connection or the server.
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

    /// Whether a token is sent.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }
}

/// The client, which follows redirects to other hosts; the token stays with the first one.
fn client() -> reqwest::Result<&'static Client> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // A connection belongs to the runtime that opened it: none is kept.
    let client = Client::builder().pool_max_idle_per_host(0).build()?;
    Ok(CLIENT.get_or_init(|| client))
}

/// Writes a response into a file, which appears only when it is complete.
pub(super) async fn download(
    mut response: Response,
    path: &Path,
    shown: &str,
    context: &Context,
) -> Result<(), OperatorError> {
    let mut file = tempfile::NamedTempFile::new_in(parent(path)?)?;
    let broken = |error| OperatorError::machine(format!("`{shown}` broke off: {error}"));
    while let Some(bytes) = response.chunk().await.map_err(broken)? {
        context.check_cancelled()?;
        file.write_all(&bytes)?;
    }
    file.persist(path).map_err(|error| OperatorError::from(error.error))?;
    Ok(())
}

/// Writes a small file, which appears only when it is complete.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), OperatorError> {
    let mut file = tempfile::NamedTempFile::new_in(parent(path)?)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| OperatorError::from(error.error))?;
    Ok(())
}

/// The folder of a file; it is made where it is missing.
pub(super) fn parent(path: &Path) -> std::io::Result<&Path> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    Ok(folder)
}

/// The commit that a revision means as far as the cached repository knows: a revision that is one, or what was noted of a
/// branch or tag.
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

/// Could it be a part of a repository's or revision's name, and of a path?
pub(super) fn is_name(name: &str) -> bool {
    let plain = |ch: char| ch.is_ascii_alphanumeric() || matches!(ch, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}
