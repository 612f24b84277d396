//! Fetches files of Hub data sets: `hf://datasets/ORG/NAME/path@revision`.

use std::path::{Path, PathBuf};

use reqwest::header::{ETAG, HeaderMap};
use reqwest::{Response, StatusCode};
use searchmill_engine::operator::{Context, OperatorError};

use super::client::{Hub, cached_commit, download, is_commit, parent, words, write_whole};

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

impl HubFile {
    /// Parses `hf://datasets/ORG/NAME/path@revision` (or `…/NAME@revision/path`). The revision defaults to `main`.
    ///
    /// # Errors
    /// What is wrong with the location.
    pub fn parse(location: &str) -> Result<Self, String> {
        Self::parts(location).ok_or_else(|| format!("`{location}` is not `hf://datasets/ORG/NAME/path@revision`"))
    }

    fn parts(location: &str) -> Option<Self> {
        let (organisation, rest) = location.strip_prefix("hf://datasets/")?.split_once('/')?;
        let (name, path) = rest.split_once('/')?;
        let (name, early) = name.split_once('@').map_or((name, None), |(name, revision)| (name, Some(revision)));
        // The last one: names of folders may have an `@`.
        let (path, late) = path.rsplit_once('@').map_or((path, None), |(path, revision)| (path, Some(revision)));
        let revision = match early.or(late) {
            None | Some("") => "main",
            Some(revision) => revision,
        };
        // They become parts of paths in the cache, which `..` would leave.
        for part in [organisation, name].into_iter().chain(path.split('/')).chain(revision.split('/')) {
            if matches!(part, "" | "." | "..") {
                return None;
            }
        }
        let (repository, revision) = (format!("{organisation}/{name}"), revision.to_owned());
        Some(Self { repository, revision, path: path.to_owned() })
    }
}

/// Returns the file's path in the local cache. Downloads the file if it is missing or outdated.
///
/// # Errors
/// Fails if the Hub rejects the request, or cannot be reached and the cache lacks the file.
pub fn fetch(location: &str, context: &Context) -> Result<PathBuf, OperatorError> {
    Hub::from_environment().fetch(location, context)
}

impl Hub {
    fn fetch(&self, location: &str, context: &Context) -> Result<PathBuf, OperatorError> {
        let file = HubFile::parse(location).map_err(OperatorError::pipeline)?;
        context.block_on(self.path(&file, location, context))
    }

    /// Returns the file's path in the cache, after a download if the cache lacks it or may be outdated.
    async fn path(&self, file: &HubFile, location: &str, context: &Context) -> Result<PathBuf, OperatorError> {
        let folder = self.cache.join(format!("datasets--{}", file.repository.replace('/', "--")));
        // At the commit last seen for the revision.
        let cached = cached_commit(&folder, &file.revision);
        let cached = cached.map(|commit| folder.join("snapshots").join(commit).join(&file.path));
        let cached = cached.filter(|path| path.exists());
        // The file of a commit never changes; a branch may have moved.
        if let Some(path) = &cached
            && (self.offline || is_commit(&file.revision))
        {
            return Ok(path.clone());
        }
        if self.offline {
            return Err(OperatorError::machine(format!(
                "`{location}` is not in the cache {}, and HF_HUB_OFFLINE is set",
                self.cache.display()
            )));
        }
        let path: Vec<String> = file.path.split('/').map(encoded).collect();
        let (path, revision) = (path.join("/"), encoded(&file.revision));
        let url = format!("{}/datasets/{}/resolve/{revision}/{path}", self.endpoint, file.repository);
        let response = match (self.get(&url, context).await, cached) {
            (Ok(response), _) => response,
            (Err(_), Some(cached)) => {
                context.progress().log(&format!("cannot reach the Hub; reading `{location}` from the cache"));
                return Ok(cached);
            }
            (Err(error), None) => {
                let message = format!("cannot reach {} for `{location}`: {error}", self.endpoint);
                let help = "check the network, or set HF_ENDPOINT to a mirror";
                return Err(OperatorError::machine(message).with_help(help));
            }
        };
        self.check(location, &response)?;
        let commit = header(response.headers(), "x-repo-commit").unwrap_or_else(|| file.revision.clone());
        // Large files are on another server, whose tag names their content.
        let tag = header(response.headers(), "x-linked-etag").or_else(|| header(response.headers(), ETAG.as_str()));
        let target = folder.join("snapshots").join(&commit).join(&file.path);
        if !is_commit(&file.revision) {
            write_whole(&folder.join("refs").join(&file.revision), commit.as_bytes())?;
        }
        let Some(tag) = tag else {
            // Without a tag nothing shows whether a cached file is that of the server.
            download(response, &target, location, context).await?;
            return Ok(target);
        };
        if !target.exists() {
            // Files of several commits with equal content share a blob.
            let blob = folder.join("blobs").join(tag);
            if !blob.exists() {
                download(response, &blob, location, context).await?;
            }
            link(&blob, &target)?;
        }
        Ok(target)
    }

    fn check(&self, location: &str, response: &Response) -> Result<(), OperatorError> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let error =
            OperatorError::data(format!("{} answers {status} for `{location}`{}", self.endpoint, words(response)));
        let help = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.token.is_none() => {
                "the data set is private or gated: set HF_TOKEN"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "HF_TOKEN does not grant access to this data set",
            StatusCode::NOT_FOUND => "check organisation, name, path and revision",
            _ => return Err(error),
        };
        Err(error.with_help(help))
    }
}

/// Encodes a part of a URL's path.
fn encoded(text: &str) -> String {
    // Forms write a space as `+`, paths do not.
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// Returns a header's value as a safe file name: no quotes, no weak-tag mark, no path.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.trim_start_matches("W/").trim_matches('"');
    let is_safe = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_safe { Some(value.to_owned()) } else { None }
}

/// Creates a relative link, like Python's `huggingface_hub`; a copy if links are not supported.
fn link(blob: &Path, target: &Path) -> Result<(), OperatorError> {
    let folder = parent(target)?;
    let (Some(root), Some(name)) = (blob.ancestors().nth(2), blob.file_name()) else {
        return Err(OperatorError::engine("the cache's blob has no folder"));
    };
    let depth = folder.strip_prefix(root).map_or(0, |below| below.components().count());
    let relative: PathBuf = std::iter::repeat_n("..", depth).collect::<PathBuf>().join("blobs").join(name);
    match std::os::unix::fs::symlink(&relative, target) {
        Ok(()) => {}
        // Another process was faster.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(_) => drop(fs_err::copy(blob, target)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::Harness;
    use searchmill_fixtures::test_server::TestServer;

    use super::*;

    const LOCATION: &str = "hf://datasets/org/name/data/a b.jsonl";
    const ADDRESS: &str = "/datasets/org/name/resolve/main/data/a%20b.jsonl";

    fn hub(endpoint: &str, harness: &Harness) -> Hub {
        Hub::new(endpoint, harness.path().join("home/hub"), Some("t0ken".into()))
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
        let mut offline = gone;
        offline.offline = true;
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

    /// Answers every request with these bytes, and closes the connection.
    fn raw(answer: &'static str, context: &Context) -> String {
        let listener = context.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serve = async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                drop(tokio::io::AsyncReadExt::read(&mut stream, &mut request).await);
                drop(tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await);
            }
        };
        context.block_on(async { drop(tokio::spawn(serve)) });
        address
    }

    /// Without a length, a connection that is cut looks like the end of the file.
    #[test]
    fn a_body_that_may_have_been_cut_is_no_file() {
        let fetched = |answer: &'static str| {
            let harness = Harness::new();
            let address = raw(answer, &harness.context());
            hub(&address, &harness).fetch(LOCATION, &harness.context()).map(|path| text(&path))
        };
        let error = fetched("HTTP/1.1 200 OK\r\n\r\n{\"a\":1}\n").unwrap_err();
        assert!(error.message.contains("the server does not say how long"), "{error}");
        let error = fetched("HTTP/1.1 200 OK\r\nx-linked-size: 20\r\n\r\n{\"a\":1}\n").unwrap_err();
        assert!(error.message.contains("ended after 8 of 20 bytes"), "{error}");
        assert_eq!(fetched("HTTP/1.1 200 OK\r\nx-linked-size: 8\r\n\r\n{\"a\":1}\n").unwrap(), "{\"a\":1}\n");
        let error = fetched("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{\"a\":1}\n").unwrap_err();
        assert!(error.message.contains("was interrupted"), "{error}");
        let error = fetched("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n{\"a\":1}\n\r\n").unwrap_err();
        assert!(error.message.contains("was interrupted"), "{error}");
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
