//! Model files: a local folder, the Hugging Face cache, or a download from the hub.
//!
//! The one place that reads environment variables, those of the hub's own tools: `HF_ENDPOINT`, `HF_HOME` (with
//! `HF_HUB_CACHE`), `HF_TOKEN` and `HF_HUB_OFFLINE`. The cache is laid out as `huggingface_hub` does it
//! (`hub/models--ORG--NAME/snapshots/REVISION/FILE`), so files that Python has fetched are found.

use std::env::var;
use std::path::{Path, PathBuf};

use searchmill_engine::operator::{Context, OperatorError};

/// Is that a path (`./model`, `/models/e5`, `models/e5/v2`) rather than a hub id (`intfloat/e5-base-v2`)?
pub(super) fn is_path(model: &str) -> bool {
    model.starts_with(['.', '/', '~']) || model.matches('/').count() != 1
}

/// Where models come from.
pub(super) struct Hub {
    endpoint: String,
    cache: PathBuf,
    token: Option<String>,
    offline: bool,
}

impl Hub {
    pub(super) fn from_environment() -> Self {
        let home = || var("HF_HOME").map(PathBuf::from);
        let user = || PathBuf::from(var("HOME").unwrap_or_default()).join(".cache/huggingface");
        Self {
            endpoint: var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".to_owned()),
            cache: var("HF_HUB_CACHE").map_or_else(|_| home().unwrap_or_else(|_| user()).join("hub"), PathBuf::from),
            token: var("HF_TOKEN").ok(),
            offline: var("HF_HUB_OFFLINE").is_ok_and(|value| !matches!(value.as_str(), "" | "0")),
        }
    }

    /// The folder that holds a model's files, fetched from the hub where needed.
    pub(super) fn folder(
        &self,
        model: &str,
        revision: &str,
        files: &[&str],
        context: &Context,
    ) -> Result<PathBuf, OperatorError> {
        let local = context.resolve(model);
        if is_path(model) || local.is_dir() {
            return local_folder(local, files);
        }
        let cached = self.cache.join(format!("models--{}", model.replace('/', "--")));
        let folder = snapshot(&cached, revision);
        if holds(&folder, files) {
            return Ok(folder);
        }
        if self.offline {
            let message = format!("the model `{model}` is not in {} and HF_HUB_OFFLINE is set", cached.display());
            return Err(OperatorError::machine(message).with_help("fetch it first, or give the path of a local folder"));
        }
        context.block_on(self.download(model, revision, &folder, files, context))?;
        Ok(folder)
    }

    async fn download(
        &self,
        model: &str,
        revision: &str,
        folder: &Path,
        files: &[&str],
        context: &Context,
    ) -> Result<(), OperatorError> {
        std::fs::create_dir_all(folder)?;
        for file in files.iter().filter(|file| !folder.join(file).is_file()) {
            let url = format!("{}/{model}/resolve/{revision}/{file}", self.endpoint.trim_end_matches('/'));
            context.progress().log(&format!("fetching {url}"));
            self.fetch(&url, &folder.join(file), context).await?;
        }
        Ok(())
    }

    /// Fetches a URL into a file, which appears only when it is complete.
    async fn fetch(&self, url: &str, path: &Path, context: &Context) -> Result<(), OperatorError> {
        let mut request = context.http().get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let failed = |error: reqwest::Error| {
            OperatorError::machine(format!("cannot fetch {url}: {error}"))
                .with_help("set HF_ENDPOINT to a mirror, HF_TOKEN for gated models, or give the path of a local folder")
        };
        let mut response = request.send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        while let Some(bytes) = response.chunk().await.map_err(failed)? {
            context.check_cancelled()?;
            std::io::Write::write_all(&mut file, &bytes)?;
        }
        file.persist(path).map_err(|error| OperatorError::machine(error.to_string()))?;
        Ok(())
    }
}

fn holds(folder: &Path, files: &[&str]) -> bool {
    files.iter().all(|file| folder.join(file).is_file())
}

fn local_folder(folder: PathBuf, files: &[&str]) -> Result<PathBuf, OperatorError> {
    match files.iter().find(|file| !folder.join(file).is_file()) {
        None => Ok(folder),
        Some(file) => Err(OperatorError::machine(format!("the model folder {} has no {file}", folder.display()))
            .with_help(format!("a model folder holds {}", files.join(", ")))),
    }
}

/// The folder of a revision: a commit, or a branch or tag, whose commit `refs/` may know.
fn snapshot(cached: &Path, revision: &str) -> PathBuf {
    let commit = std::fs::read_to_string(cached.join("refs").join(revision));
    let commit = commit.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
    cached.join("snapshots").join(commit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::{Request, State};
    use axum::http::StatusCode;
    use searchmill_engine::operator::testing::Harness;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A hub that has one model with two files, for those who show a token.
    async fn serve(State(asked): State<Arc<AtomicUsize>>, request: Request) -> (StatusCode, String) {
        asked.fetch_add(1, Ordering::Relaxed);
        let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        match (token, request.uri().path()) {
            (
                Some("Bearer open-sesame"),
                path @ ("/org/model/resolve/main/a.json" | "/org/model/resolve/main/b.bin"),
            ) => (StatusCode::OK, format!("{path} {}", "x".repeat(100_000))),
            (None, _) => (StatusCode::UNAUTHORIZED, String::new()),
            _ => (StatusCode::NOT_FOUND, String::new()),
        }
    }

    fn hub(harness: &Harness, token: Option<&str>) -> (Hub, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let app = axum::Router::new().fallback(serve).with_state(Arc::clone(&asked));
        let context = harness.context();
        let listener = context.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        context.block_on(async { drop(tokio::spawn(async { axum::serve(listener, app).await })) });
        let token = token.map(str::to_owned);
        (Hub { endpoint, cache: harness.path().join("cache"), token, offline: false }, asked)
    }

    #[test]
    fn files_are_fetched_once_and_found_in_the_cache() {
        let harness = Harness::new();
        let (mut hub, asked) = hub(&harness, Some("open-sesame"));
        let files = ["a.json", "b.bin"];
        for _ in 0..2 {
            let folder = hub.folder("org/model", "main", &files, &harness.context()).unwrap();
            assert!(folder.ends_with("cache/models--org--model/snapshots/main"));
            assert!(
                std::fs::read_to_string(folder.join("b.bin")).unwrap().starts_with("/org/model/resolve/main/b.bin x")
            );
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        hub.offline = true;
        assert!(hub.folder("org/model", "main", &files, &harness.context()).is_ok());
        let error = hub.folder("org/other", "main", &files, &harness.context()).unwrap_err();
        assert!(error.message.contains("HF_HUB_OFFLINE"), "{error}");
    }

    #[test]
    fn a_snapshot_that_python_fetched_is_found_through_its_ref() {
        let harness = Harness::new();
        let (hub, asked) = hub(&harness, None);
        let cached = hub.cache.join("models--org--model");
        std::fs::create_dir_all(cached.join("refs")).unwrap();
        std::fs::create_dir_all(cached.join("snapshots/abc123")).unwrap();
        std::fs::write(cached.join("refs/main"), "abc123\n").unwrap();
        std::fs::write(cached.join("snapshots/abc123/a.json"), "{}").unwrap();
        let folder = hub.folder("org/model", "main", &["a.json"], &harness.context()).unwrap();
        assert_eq!((folder, asked.load(Ordering::Relaxed)), (cached.join("snapshots/abc123"), 0));
    }

    #[test]
    fn what_cannot_be_fetched_says_what_to_do() {
        let harness = Harness::new();
        let (hub, _) = hub(&harness, None);
        let error = hub.folder("org/model", "main", &["a.json"], &harness.context()).unwrap_err();
        assert!(error.message.contains("401") && error.help.unwrap().contains("HF_TOKEN"));
        assert!(
            hub.folder("./nowhere", "main", &["a.json"], &harness.context()).unwrap_err().message.contains("a.json")
        );
        assert_eq!(["./m", "/m", "a/b/c", "m"].map(is_path), [true; 4]);
        assert!(!is_path("intfloat/e5-base-v2"));
    }
}
