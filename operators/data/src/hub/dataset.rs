//! Files of data sets on the Hugging Face Hub: `hf://datasets/ORG/NAME/path@revision`.
//!
//! They are kept in the Hub's own cache layout below `$HF_HOME/hub` (`datasets--ORG--NAME/{refs,blobs,snapshots}`), so
//! that Python's `huggingface_hub` and searchmill share them. `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE`
//! are honoured.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use futures::StreamExt;
use reqwest::header::{ETAG, HeaderMap};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use searchmill_engine::operator::{Context, OperatorError};

use crate::source::store::setting;

/// A file of a data set at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// `ORG/NAME`.
    repository: String,
    /// Branch, tag or commit.
    revision: String,
    /// Path in the repository.
    path: String,
}

/// Where the Hub is and where its files are kept.
#[derive(Clone, Debug)]
struct Hub {
    endpoint: String,
    home: PathBuf,
    token: Option<String>,
    offline: bool,
}

impl HubFile {
    /// Reads `hf://datasets/ORG/NAME/path@revision` (or `…/NAME@revision/path`); without a revision: `main`.
    ///
    /// # Errors
    /// What is wrong with the location.
    pub fn parse(location: &str) -> Result<Self, String> {
        let shape = || format!("`{location}` is not `hf://datasets/ORG/NAME/path@revision`");
        let rest = location.strip_prefix("hf://datasets/").ok_or_else(shape)?;
        let (organisation, rest) = rest.split_once('/').ok_or_else(shape)?;
        let (name, path) = rest.split_once('/').ok_or_else(shape)?;
        let (name, early) = name.split_once('@').map_or((name, None), |(name, revision)| (name, Some(revision)));
        let (path, late) = path.rsplit_once('@').map_or((path, None), |(path, revision)| (path, Some(revision)));
        let unsafe_part = |part: &str| part.is_empty() || part == "." || part == "..";
        if unsafe_part(organisation) || unsafe_part(name) || path.split('/').any(unsafe_part) {
            return Err(shape());
        }
        let revision = early.or(late).filter(|revision| !revision.is_empty()).unwrap_or("main");
        if revision.split('/').any(unsafe_part) {
            return Err(shape());
        }
        Ok(Self { repository: format!("{organisation}/{name}"), revision: revision.to_owned(), path: path.to_owned() })
    }

    fn is_commit(&self) -> bool {
        self.revision.len() == 40 && self.revision.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// The file's path in the local cache, fetched when it is not there or no longer what the Hub has.
///
/// # Errors
/// When the Hub refuses it or cannot be reached and the cache does not have it.
pub fn fetch(location: &str, context: &Context) -> Result<PathBuf, OperatorError> {
    Hub::of_environment()?.fetch(location, context)
}

impl Hub {
    fn of_environment() -> Result<Self, OperatorError> {
        let home = setting("HF_HOME").map(PathBuf::from).or_else(|| {
            let cache = setting("XDG_CACHE_HOME").map(PathBuf::from);
            cache.or_else(|| Some(Path::new(&setting("HOME")?).join(".cache"))).map(|cache| cache.join("huggingface"))
        });
        let home = home.ok_or_else(|| {
            OperatorError::machine("there is no folder for files from the Hugging Face Hub").with_help("set HF_HOME")
        })?;
        let endpoint = setting("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let offline = setting("HF_HUB_OFFLINE").is_some_and(|value| value != "0");
        Ok(Self { endpoint: endpoint.trim_end_matches('/').to_owned(), home, token: setting("HF_TOKEN"), offline })
    }

    fn fetch(&self, location: &str, context: &Context) -> Result<PathBuf, OperatorError> {
        let file = HubFile::parse(location).map_err(OperatorError::pipeline)?;
        context.block_on(self.path(&file, location, context))
    }

    fn folder(&self, file: &HubFile) -> PathBuf {
        self.home.join("hub").join(format!("datasets--{}", file.repository.replace('/', "--")))
    }

    /// The file as the cache has it, by the commit that the revision last stood for.
    fn cached(&self, file: &HubFile) -> Option<PathBuf> {
        let folder = self.folder(file);
        let commit = if file.is_commit() {
            file.revision.clone()
        } else {
            std::fs::read_to_string(folder.join("refs").join(&file.revision)).ok()?.trim().to_owned()
        };
        Some(folder.join("snapshots").join(commit).join(&file.path)).filter(|path| path.exists())
    }

    async fn path(&self, file: &HubFile, location: &str, context: &Context) -> Result<PathBuf, OperatorError> {
        let cached = self.cached(file);
        if let Some(path) = cached.clone().filter(|_| self.offline || file.is_commit()) {
            return Ok(path);
        }
        if self.offline {
            return Err(OperatorError::machine(format!(
                "`{location}` is not in {} and HF_HUB_OFFLINE is set",
                self.home.display()
            )));
        }
        match self.ask(file, context).await {
            Ok(response) => self.keep(file, location, response).await,
            Err(_) if cached.is_some() => {
                context.progress().log(&format!("the Hub cannot be reached; `{location}` is read from the cache"));
                cached.ok_or_else(|| OperatorError::engine("the cached file is gone"))
            }
            Err(error) => {
                Err(OperatorError::machine(format!("cannot reach {} for `{location}`: {error}", self.endpoint))
                    .with_help("check the network, or set HF_ENDPOINT to a mirror"))
            }
        }
    }

    /// Asks for the file, again after failures of the connection or the server.
    async fn ask(&self, file: &HubFile, context: &Context) -> reqwest::Result<Response> {
        let HubFile { repository, revision, path } = file;
        let encoded =
            |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20");
        let path: Vec<String> = path.split('/').map(encoded).collect();
        let address =
            format!("{}/datasets/{repository}/resolve/{}/{}", self.endpoint, encoded(revision), path.join("/"));
        let (client, retry) = (downloads()?, context.retry());
        let mut attempt = 1;
        loop {
            let sent = self.authorised(client.get(&address)).send().await;
            let again = match &sent {
                Ok(response) => {
                    response.status().is_server_error() || response.status() == StatusCode::TOO_MANY_REQUESTS
                }
                Err(error) => error.is_connect() || error.is_timeout(),
            };
            if !again || attempt >= retry.max_attempts {
                return sent;
            }
            attempt += 1;
            tokio::time::sleep(retry.wait(attempt, None)).await;
        }
    }

    fn authorised(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Puts the answer into the cache, unless it is there already.
    async fn keep(&self, file: &HubFile, location: &str, response: Response) -> Result<PathBuf, OperatorError> {
        self.check(location, &response)?;
        let folder = self.folder(file);
        let commit = header(response.headers(), "x-repo-commit").unwrap_or_else(|| file.revision.clone());
        let tag = header(response.headers(), "x-linked-etag").or_else(|| header(response.headers(), ETAG.as_str()));
        let blob = tag.map(|tag| folder.join("blobs").join(tag));
        let target = folder.join("snapshots").join(&commit).join(&file.path);
        if !file.is_commit() {
            write_whole(&folder.join("refs").join(&file.revision), commit.as_bytes())?;
        }
        if blob.is_none() || !target.exists() {
            let stored = blob.clone().unwrap_or_else(|| target.clone());
            if blob.is_none() || !stored.exists() {
                download(location, response, &stored).await?;
            }
            if stored != target {
                link(&stored, &target)?;
            }
        }
        Ok(target)
    }

    fn check(&self, location: &str, response: &Response) -> Result<(), OperatorError> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let error = OperatorError::data(format!("{} answers {status} for `{location}`", self.endpoint));
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.token.is_none() => {
                error.with_help("the data set is private or gated: set HF_TOKEN")
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                error.with_help("HF_TOKEN has no access to this data set")
            }
            StatusCode::NOT_FOUND => error.with_help("check organisation, name, path and revision"),
            _ => error,
        })
    }
}

/// A client for files of the Hub, which sends its readers on to other hosts; the token stays with the first one.
pub(crate) fn downloads() -> reqwest::Result<&'static Client> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // A connection belongs to the runtime that opened it: none is kept.
    let client = Client::builder().pool_max_idle_per_host(0).build()?;
    Ok(CLIENT.get_or_init(|| client))
}

/// A header's value as a file name: no quotes, no weak-tag mark, no path.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.trim_start_matches("W/").trim_matches('"');
    let safe = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    safe.then(|| value.to_owned())
}

fn parent(path: &Path) -> std::io::Result<&Path> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    Ok(folder)
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), OperatorError> {
    let mut file = tempfile::NamedTempFile::new_in(parent(path)?)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| OperatorError::from(error.error))?;
    Ok(())
}

async fn download(location: &str, response: Response, path: &Path) -> Result<(), OperatorError> {
    let mut file = tempfile::NamedTempFile::new_in(parent(path)?)?;
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| OperatorError::machine(format!("`{location}` broke off: {error}")))?;
        file.write_all(&chunk)?;
    }
    file.persist(path).map_err(|error| OperatorError::from(error.error))?;
    Ok(())
}

/// A relative link, as the Hub's own client makes it; a copy where links cannot be made.
fn link(blob: &Path, target: &Path) -> Result<(), OperatorError> {
    let folder = parent(target)?;
    let (Some(root), Some(name)) = (blob.ancestors().nth(2), blob.file_name()) else {
        return Err(OperatorError::engine("the cache's blob has no folder"));
    };
    let depth = folder.strip_prefix(root).map_or(0, |below| below.components().count());
    let relative: PathBuf = std::iter::repeat_n("..", depth).collect::<PathBuf>().join("blobs").join(name);
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(&relative, target);
    #[cfg(not(unix))]
    let linked = std::fs::copy(blob, target).map(drop);
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            std::fs::copy(blob, target)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::Harness;
    use searchmill_fixtures::test_server::TestServer;

    use super::*;

    const LOCATION: &str = "hf://datasets/org/name/data/a b.jsonl";
    const ADDRESS: &str = "/datasets/org/name/resolve/main/data/a%20b.jsonl";

    fn hub(endpoint: &str, harness: &Harness) -> Hub {
        Hub {
            endpoint: endpoint.to_owned(),
            home: harness.path().join("home"),
            token: Some("t0ken".into()),
            offline: false,
        }
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    fn server(body: &str, commit: char, tag: &str) -> TestServer {
        let server = TestServer::new(&[(ADDRESS, body.as_bytes())]);
        let commit = commit.to_string().repeat(40);
        server.shelf.lock().unwrap().headers = vec![("x-repo-commit", commit), ("etag", format!("\"{tag}\""))];
        server
    }

    #[test]
    fn locations_name_repository_revision_and_path() {
        let file = |repository: &str, revision: &str, path: &str| {
            Ok(HubFile { repository: repository.into(), revision: revision.into(), path: path.into() })
        };
        assert_eq!(HubFile::parse("hf://datasets/o/n/a/b.csv"), file("o/n", "main", "a/b.csv"));
        assert_eq!(HubFile::parse("hf://datasets/o/n/a/b.csv@v1.0"), file("o/n", "v1.0", "a/b.csv"));
        assert_eq!(HubFile::parse("hf://datasets/o/n@v1.0/a/b.csv"), file("o/n", "v1.0", "a/b.csv"));
        for wrong in [
            "hf://o/n/a",
            "hf://datasets/o/n",
            "hf://datasets/o/n/",
            "hf://datasets/o/n/../../x",
            "hf://datasets/o/n/a@..",
        ] {
            assert!(HubFile::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_fetched_once_and_kept_as_the_hub_keeps_them() {
        let harness = Harness::new();
        let server = server("{\"a\":1}\n", 'c', "tag1");
        server.shelf.lock().unwrap().failures = 1;
        let hub = hub(&server.address, &harness);
        assert_eq!(text(&hub.fetch(LOCATION, &harness.context()).unwrap()), "{\"a\":1}\n");
        assert_eq!(server.requests(), [format!("GET {ADDRESS} Bearer t0ken"), format!("GET {ADDRESS} Bearer t0ken")]);
        let folder = harness.path().join("home/hub/datasets--org--name");
        assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), "c".repeat(40));
        assert!(folder.join("blobs/tag1").is_file());
        let link = folder.join("snapshots").join("c".repeat(40)).join("data/a b.jsonl");
        assert_eq!(std::fs::read_link(link).unwrap(), Path::new("../../../blobs/tag1"));
        let pinned = format!("{LOCATION}@{}", "c".repeat(40));
        assert_eq!(text(&hub.fetch(&pinned, &harness.context()).unwrap()), "{\"a\":1}\n");
        assert_eq!(server.requests().len(), 2, "a cached commit needs no request");
    }

    #[test]
    fn a_moved_branch_is_fetched_again_and_an_unreachable_hub_is_bridged() {
        let harness = Harness::new();
        let old = server("old", 'a', "one");
        assert_eq!(text(&hub(&old.address, &harness).fetch(LOCATION, &harness.context()).unwrap()), "old");
        let new = server("new", 'b', "two");
        assert_eq!(text(&hub(&new.address, &harness).fetch(LOCATION, &harness.context()).unwrap()), "new");
        let gone = hub("http://127.0.0.1:9", &harness);
        assert_eq!(text(&gone.fetch(LOCATION, &harness.context()).unwrap()), "new");
        let offline = Hub { offline: true, ..gone };
        assert_eq!(text(&offline.fetch(LOCATION, &harness.context()).unwrap()), "new");
        let error = offline.fetch("hf://datasets/org/name/other", &harness.context()).unwrap_err();
        assert!(error.message.contains("HF_HUB_OFFLINE"), "{error}");
    }

    #[test]
    fn the_hub_may_send_readers_to_another_host_but_not_the_token() {
        let harness = Harness::new();
        let blobs = TestServer::new(&[("/blob", b"content")]);
        let target = format!("{}/blob", blobs.address);
        let redirect = axum::response::Redirect::temporary(&target);
        let app = axum::Router::new().fallback(move || async move { redirect });
        let context = harness.context();
        let listener = context.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        context.block_on(async { drop(tokio::spawn(async { axum::serve(listener, app).await })) });
        assert_eq!(text(&hub(&address, &harness).fetch(LOCATION, &context).unwrap()), "content");
        assert_eq!(blobs.requests(), ["GET /blob"]);
    }

    #[test]
    fn refusals_say_what_to_do() {
        let harness = Harness::new();
        let server = server("", 'a', "one");
        let error =
            hub(&server.address, &harness).fetch("hf://datasets/org/name/none", &harness.context()).unwrap_err();
        assert!(error.message.contains("404") && error.help.unwrap().contains("revision"));
        let error = hub("http://127.0.0.1:9", &harness).fetch(LOCATION, &harness.context()).unwrap_err();
        assert!(error.help.unwrap().contains("HF_ENDPOINT"));
    }
}
