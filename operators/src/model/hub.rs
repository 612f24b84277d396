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

/// The folder that holds a model's files, fetched from the hub where needed.
pub(super) fn model_folder(
    model: &str,
    revision: &str,
    files: &[&str],
    context: &Context,
) -> Result<PathBuf, OperatorError> {
    let local = context.resolve(model);
    if is_path(model) || local.is_dir() {
        return local_folder(local, files);
    }
    let cache = Cache::from_environment(model);
    if let Some(folder) = cache.snapshot(revision).filter(|folder| holds(folder, files)) {
        return Ok(folder);
    }
    if var("HF_HUB_OFFLINE").is_ok_and(|value| !matches!(value.as_str(), "" | "0")) {
        let message = format!("the model `{model}` is not in {} and HF_HUB_OFFLINE is set", cache.folder.display());
        return Err(OperatorError::machine(message).with_help("fetch it first, or give the path of a local folder"));
    }
    context.block_on(cache.download(model, revision, files, context))
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

/// A model's place in the cache.
struct Cache {
    folder: PathBuf,
}

impl Cache {
    fn from_environment(model: &str) -> Self {
        let home = || var("HF_HOME").map(PathBuf::from);
        let user = || PathBuf::from(var("HOME").unwrap_or_default()).join(".cache/huggingface");
        let hub = var("HF_HUB_CACHE").map_or_else(|_| home().unwrap_or_else(|_| user()).join("hub"), PathBuf::from);
        Self { folder: hub.join(format!("models--{}", model.replace('/', "--"))) }
    }

    /// The folder of a revision: a commit, or a branch or tag that `refs/` knows.
    fn snapshot(&self, revision: &str) -> Option<PathBuf> {
        let commit = std::fs::read_to_string(self.folder.join("refs").join(revision));
        let commit = commit.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
        let folder = self.folder.join("snapshots").join(commit);
        folder.is_dir().then_some(folder)
    }

    async fn download(
        &self,
        model: &str,
        revision: &str,
        files: &[&str],
        context: &Context,
    ) -> Result<PathBuf, OperatorError> {
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".to_owned());
        let folder = self.folder.join("snapshots").join(revision);
        std::fs::create_dir_all(&folder)?;
        for file in files.iter().filter(|file| !folder.join(file).is_file()) {
            let url = format!("{}/{model}/resolve/{revision}/{file}", endpoint.trim_end_matches('/'));
            context.progress().log(&format!("fetching {url}"));
            fetch(&url, &folder.join(file), context).await?;
        }
        Ok(folder)
    }
}

/// Fetches a URL into a file, which appears only when it is complete.
async fn fetch(url: &str, path: &Path, context: &Context) -> Result<(), OperatorError> {
    let mut request = context.http().get(url);
    if let Ok(token) = var("HF_TOKEN") {
        request = request.bearer_auth(token);
    }
    let failed = |error: reqwest::Error| {
        OperatorError::machine(format!("cannot fetch {url}: {error}"))
            .with_help("set HF_ENDPOINT to a mirror, HF_TOKEN for gated models, or give the path of a local folder")
    };
    let mut response = request.send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    while let Some(bytes) = response.chunk().await.map_err(failed)? {
        context.check_cancelled()?;
        std::io::Write::write_all(&mut file, &bytes)?;
    }
    file.persist(path).map_err(|error| OperatorError::machine(error.to_string()))?;
    Ok(())
}
