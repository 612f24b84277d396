//! Model files: a local folder, the Hugging Face cache, or a download from the hub.
//!
//! The one place that reads environment variables, those of the hub's own tools: `HF_ENDPOINT`, `HF_HOME` (with
//! `HF_HUB_CACHE`), `HF_TOKEN` and `HF_HUB_OFFLINE`. The cache is laid out as `huggingface_hub` does it
//! (`hub/models--ORG--NAME/snapshots/REVISION/FILE`), so files that Python has fetched are found.

use std::env::var;
use std::path::{Path, PathBuf};

use searchmill_engine::operator::{Context, OperatorError};

/// Is that a path (`./model`, `/models/e5`, `models/e5/v2`) rather than a hub id (`intfloat/e5-base-v2`)?
pub(crate) fn is_path(model: &str) -> bool {
    model.starts_with(['.', '/', '~']) || model.matches('/').count() != 1
}

/// A model of the hub: `hf://ORG/NAME`, or `hf://ORG/NAME@REVISION` (a branch, tag or commit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubModel {
    id: String,
    revision: String,
}

impl HubModel {
    /// Is it written as one? It may still be written wrongly.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with("hf://")
    }

    /// The model; none where the text is not of that form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, revision) = text.strip_prefix("hf://")?.split_once('@').unwrap_or((&text[5..], "main"));
        let is_name = |name: &str| {
            let plain = |ch: char| ch.is_ascii_alphanumeric() || matches!(ch, '-' | '_' | '.');
            !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
        };
        let fits = (1..=2).contains(&id.split('/').count()) && id.split('/').all(is_name);
        let revises = !revision.is_empty() && revision.split('/').all(is_name);
        (fits && revises).then(|| Self { id: id.to_owned(), revision: revision.to_owned() })
    }
}

impl std::fmt::Display for HubModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf://{}@{}", self.id, self.revision)
    }
}

/// Where models come from.
pub(crate) struct Hub {
    endpoint: String,
    cache: PathBuf,
    token: Option<String>,
    offline: bool,
}

impl Hub {
    pub(crate) fn from_environment() -> Self {
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
    pub(crate) fn folder(
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
        self.fetched(model, revision, files, context)
    }

    /// Where a file of a model lies once it was fetched.
    pub(crate) fn place(&self, model: &HubModel, file: &str) -> PathBuf {
        let cached = self.cached(&model.id);
        cached.join("snapshots").join(commit(&cached, &model.revision)).join(file)
    }

    /// Fetches a file of a model where it is not in the cache; gives its place.
    pub(crate) fn file(&self, model: &HubModel, file: &str, context: &Context) -> Result<PathBuf, OperatorError> {
        Ok(self.fetched(&model.id, &model.revision, &[file], context)?.join(file))
    }

    fn cached(&self, model: &str) -> PathBuf {
        self.cache.join(format!("models--{}", model.replace('/', "--")))
    }

    fn fetched(
        &self,
        model: &str,
        revision: &str,
        files: &[&str],
        context: &Context,
    ) -> Result<PathBuf, OperatorError> {
        let cached = self.cached(model);
        let revision = commit(&cached, revision);
        let folder = cached.join("snapshots").join(&revision);
        if holds(&folder, files) {
            return Ok(folder);
        }
        if self.offline {
            let message = format!("the model `{model}` is not in {} and HF_HUB_OFFLINE is set", cached.display());
            return Err(OperatorError::machine(message).with_help("fetch it first, or give the path of a local folder"));
        }
        context.block_on(self.download(model, &revision, &folder, files, context))?;
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

/// The commit of a branch or tag as `refs/` knows it; anything else stands for itself.
fn commit(cached: &Path, revision: &str) -> String {
    let known = std::fs::read_to_string(cached.join("refs").join(revision));
    known.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned())
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

    #[test]
    fn a_single_file_is_fetched_to_its_place() {
        let harness = Harness::new();
        let (hub, asked) = hub(&harness, Some("open-sesame"));
        let model = HubModel::parse("hf://org/model").unwrap();
        let place = hub.place(&model, "a.json");
        assert!(place.ends_with("cache/models--org--model/snapshots/main/a.json") && !place.exists());
        for _ in 0..2 {
            assert_eq!(hub.file(&model, "a.json", &harness.context()).unwrap(), place);
        }
        assert_eq!((place.is_file(), asked.load(Ordering::Relaxed)), (true, 1));
        let other = HubModel::parse("hf://org/model@v2").unwrap();
        assert!(hub.file(&other, "a.json", &harness.context()).unwrap_err().message.contains("404"));
    }

    #[test]
    fn addresses_of_models() {
        let shown = |text: &str| HubModel::parse(text).map(|model| model.to_string());
        assert_eq!(shown("hf://intfloat/e5-base-v2").as_deref(), Some("hf://intfloat/e5-base-v2@main"));
        assert_eq!(shown("hf://gpt2@refs/pr/1").as_deref(), Some("hf://gpt2@refs/pr/1"));
        for wrong in ["org/model", "hf://", "hf://a/b/c", "hf://a/b@", "hf://../b", "hf://a/b@../../x", "hf:///b"] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }
}
