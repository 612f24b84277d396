//! Fetches Hub models: resolves a revision to a commit, and finds files of that commit in the cache or downloads them.
//!
//! A file that a commit lacks is cached as `.no_exist/COMMIT/FILE`, like Python's `huggingface_hub` does.

use std::path::{Path, PathBuf};

use searchmill_engine::operator::{Context, OperatorError};

use super::client::{Hub, cached_commit, download, is_commit, is_name, words, write_whole};

/// A Hub model: `hf://ORG/NAME` or `hf://ORG/NAME@REVISION` (a branch, tag or commit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    pub id: String,
    pub revision: String,
}

impl HubModel {
    /// Whether the text is meant as a Hub model. It may still be malformed.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("hf://")
    }

    /// Parses the text; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, revision) = text.strip_prefix("hf://")?.split_once('@').unwrap_or((&text[5..], "main"));
        let is_id = (1..=2).contains(&id.split('/').count()) && id.split('/').all(is_name);
        let is_revision = !revision.is_empty() && revision.split('/').all(is_name);
        if is_id && is_revision { Some(Self { id: id.to_owned(), revision: revision.to_owned() }) } else { None }
    }
}

impl std::fmt::Display for HubModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf://{}@{}", self.id, self.revision)
    }
}

impl Hub {
    /// Returns the commit of a model's revision from the local cache: the revision itself if it is a commit, else the
    /// commit cached for the branch or tag.
    pub fn commit(&self, model: &HubModel) -> Option<String> {
        cached_commit(&self.cached(model), &model.revision)
    }

    /// Returns the commit of a model's revision. Queries the Hub if the cache lacks it, and caches the answer.
    ///
    /// # Errors
    /// Fails if the Hub cannot be reached, or has no such model or revision.
    pub fn resolve(&self, model: &HubModel, context: &Context) -> Result<String, OperatorError> {
        if let Some(commit) = self.commit(model) {
            return Ok(commit);
        }
        self.online(model)?;
        let revision = model.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}", self.endpoint, model.id);
        context.progress().log(&format!("resolving the commit at {url}"));
        let fetched = context.block_on(async {
            let response = self.get(&url, context).await?;
            response.error_for_status()?.bytes().await
        });
        let body = fetched.map_err(|error| cannot_fetch(&url, &error))?;
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        match body["sha"].as_str() {
            Some(commit) if is_commit(commit) => {
                write_whole(&self.cached(model).join("refs").join(&model.revision), commit.as_bytes())?;
                Ok(commit.to_owned())
            }
            _ => Err(OperatorError::machine(format!("{url} returned no commit"))
                .with_help("write the commit as `revision` or set HF_ENDPOINT to a mirror that has the Hub's API")),
        }
    }

    /// Returns where a fetched file of a commit is stored.
    pub fn place(&self, model: &HubModel, commit: &str, file: &str) -> PathBuf {
        self.cached(model).join("snapshots").join(commit).join(file)
    }

    /// Returns the folder of a commit that contains these files. Downloads files that are not cached.
    ///
    /// # Errors
    /// Fails if a file is missing or cannot be fetched.
    pub fn folder(
        &self,
        model: &HubModel,
        commit: &str,
        files: &[&str],
        context: &Context,
    ) -> Result<PathBuf, OperatorError> {
        for file in files {
            if !self.has(model, commit, file, context)? {
                let message = format!("{} has no {file} at commit {commit}", model.id);
                return Err(OperatorError::pipeline(message).with_help(format!("a model needs {}", files.join(", "))));
            }
        }
        Ok(self.cached(model).join("snapshots").join(commit))
    }

    /// Whether a file is part of a commit; downloads it if so. Only the Hub's own "not found" counts as missing.
    ///
    /// # Errors
    /// Fails if the answer is unknown: offline, no permission, a failing server.
    pub fn has(&self, model: &HubModel, commit: &str, file: &str, context: &Context) -> Result<bool, OperatorError> {
        // Both are final: a commit never changes.
        let path = self.place(model, commit, file);
        let absent = self.cached(model).join(".no_exist").join(commit).join(file);
        if path.is_file() || absent.is_file() {
            return Ok(path.is_file());
        }
        if let Err(error) = self.online(model) {
            let message = format!("cannot tell whether it has {file}: {}", error.message);
            return Err(OperatorError { message, ..error });
        }
        let url = format!("{}/{}/resolve/{commit}/{file}", self.endpoint, model.id);
        context.progress().log(&format!("fetching {url}"));
        let found = context.block_on(self.fetch_file(&url, &path, context))?;
        if !found {
            // Spares the request next time: files of a commit never appear later.
            write_whole(&absent, b"")?;
        }
        Ok(found)
    }

    fn cached(&self, model: &HubModel) -> PathBuf {
        self.cache.join(format!("models--{}", model.id.replace('/', "--")))
    }

    fn online(&self, model: &HubModel) -> Result<(), OperatorError> {
        if !self.offline {
            return Ok(());
        }
        let folder = self.cached(model);
        let message = format!("`{model}` is not complete in {} and HF_HUB_OFFLINE is set", folder.display());
        Err(OperatorError::machine(message).with_help("run once without it, or use the path of a local folder"))
    }

    /// Downloads a URL into a file. Returns whether the Hub has it.
    async fn fetch_file(&self, url: &str, path: &Path, context: &Context) -> Result<bool, OperatorError> {
        let response = self.get(url, context).await.map_err(|error| cannot_fetch(url, &error))?;
        // A missing repository or revision is not found either, which says nothing of the file.
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
        if response.status() == reqwest::StatusCode::NOT_FOUND && matches!(code, None | Some("EntryNotFound")) {
            return Ok(false);
        }
        let message = words(&response);
        let response = response.error_for_status().map_err(|error| cannot_fetch(url, &format!("{error}{message}")))?;
        download(response, path, url, context).await?;
        Ok(true)
    }
}

fn cannot_fetch(url: &str, error: &dyn std::fmt::Display) -> OperatorError {
    OperatorError::machine(format!("cannot fetch {url}: {error}"))
        .with_help("set HF_ENDPOINT to a mirror, HF_TOKEN for gated models, or use the path of a local folder")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use searchmill_engine::operator::testing::Harness;
    use searchmill_fixtures::hub::{COMMIT, Served};

    use super::*;

    fn hub(harness: &Harness, served: &Served, token: Option<&str>) -> Hub {
        let endpoint = harness.context().block_on(served.serve());
        Hub::new(&endpoint, harness.path().join("cache"), token.map(str::to_owned))
    }

    fn model() -> HubModel {
        HubModel::parse("hf://org/model").unwrap()
    }

    fn served() -> Served {
        let files = [("a.json", b"{}".to_vec()), ("b.bin", vec![b'x'; 100_000])];
        Served { files: Arc::new(files.into()), failing: Arc::new(vec!["broken.json"]), ..Served::default() }
    }

    #[test]
    fn a_branch_is_resolved_once_and_files_are_fetched_once() {
        let (harness, served) = (Harness::new(), served());
        let mut hub = hub(&harness, &served, Some("open-sesame"));
        assert_eq!(hub.commit(&model()), None, "`main` is not resolved yet");
        for _ in 0..2 {
            assert_eq!(hub.resolve(&model(), &harness.context()).unwrap(), COMMIT);
            let folder = hub.folder(&model(), COMMIT, &["a.json", "b.bin"], &harness.context()).unwrap();
            assert!(folder.ends_with(format!("cache/models--org--model/snapshots/{COMMIT}")));
            assert_eq!(std::fs::read(folder.join("b.bin")).unwrap().len(), 100_000);
        }
        assert_eq!((served.asked.load(Ordering::Relaxed), hub.commit(&model()).as_deref()), (3, Some(COMMIT)));
        hub.offline = true;
        assert!(hub.folder(&model(), COMMIT, &["a.json"], &harness.context()).is_ok());
        let other = HubModel::parse("hf://org/other").unwrap();
        let error = hub.resolve(&other, &harness.context()).unwrap_err();
        assert!(error.message.contains("HF_HUB_OFFLINE"), "{error}");
    }

    #[test]
    fn a_snapshot_that_python_fetched_is_found_through_its_ref() {
        let (harness, served) = (Harness::new(), served());
        let hub = hub(&harness, &served, None);
        let cached = hub.cached(&model());
        std::fs::create_dir_all(cached.join("refs")).unwrap();
        std::fs::create_dir_all(cached.join("snapshots/abc123")).unwrap();
        std::fs::write(cached.join("refs/main"), "abc123\n").unwrap();
        std::fs::write(cached.join("snapshots/abc123/a.json"), "{}").unwrap();
        let commit = hub.resolve(&model(), &harness.context()).unwrap();
        let folder = hub.folder(&model(), &commit, &["a.json"], &harness.context()).unwrap();
        assert_eq!((folder, served.asked.load(Ordering::Relaxed)), (cached.join("snapshots/abc123"), 0));
    }

    /// A file is missing only if the Hub says so.
    #[test]
    fn only_the_hub_says_that_a_file_is_not_there() {
        let (harness, served) = (Harness::new(), served());
        let mut hub = hub(&harness, &served, Some("open-sesame"));
        let has = |hub: &Hub, file| hub.has(&model(), COMMIT, file, &harness.context());
        assert!(has(&hub, "a.json").unwrap());
        assert!(!has(&hub, "none.json").unwrap());
        let failed = has(&hub, "broken.json").unwrap_err();
        assert!(failed.message.contains("503"), "{failed}");
        let asked = served.asked.load(Ordering::Relaxed);
        hub.offline = true;
        assert!(!has(&hub, "none.json").unwrap(), "the answer is cached");
        assert!(has(&hub, "unknown.json").unwrap_err().message.contains("cannot tell whether it has unknown.json"));
        assert_eq!(served.asked.load(Ordering::Relaxed), asked);
        let missing = hub.folder(&model(), COMMIT, &["none.json"], &harness.context()).unwrap_err();
        assert!(missing.message.contains("org/model has no none.json"), "{missing}");
    }

    #[test]
    fn what_cannot_be_fetched_says_what_to_do() {
        let (harness, served) = (Harness::new(), served());
        let hub = hub(&harness, &served, None);
        let error = hub.resolve(&model(), &harness.context()).unwrap_err();
        assert!(error.message.contains("401") && error.help.unwrap().contains("HF_TOKEN"));
        let error = hub.folder(&model(), COMMIT, &["a.json"], &harness.context()).unwrap_err();
        assert!(error.message.contains("401"), "{error}");
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
