//! Opens object stores by URL.
//!
//! No other module of this crate's sources reads the environment: credentials and endpoints belong to the machine,
//! never to the pipeline.

use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use searchmill_engine::operator::{OperatorError, missing_credentials};
use url::Url;

/// Prefixes of environment variables that object stores accept.
const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Opens the store of a URL and returns it with the path inside it. Credentials, regions and endpoints come from the
/// variables of the clouds' own tools (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`,
/// `AZURE_STORAGE_ACCOUNT_NAME`, …).
///
/// # Errors
/// Fails if the scheme is unknown or settings are missing.
pub fn open(url: &Url) -> Result<(Arc<dyn ObjectStore>, Path), OperatorError> {
    open_with(url, std::env::vars())
}

fn open_with(
    url: &Url,
    variables: impl Iterator<Item = (String, String)>,
) -> Result<(Arc<dyn ObjectStore>, Path), OperatorError> {
    let mut options: Vec<(String, String)> =
        variables.filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix))).collect();
    // Stores in one's own network often have no TLS.
    let plain_endpoint = options.iter().any(|(name, value)| name.contains("ENDPOINT") && value.starts_with("http://"));
    if url.scheme() == "http" || plain_endpoint {
        options.push(("allow_http".to_owned(), "true".to_owned()));
    }
    let (store, path) = object_store::parse_url_opts(url, options)
        .map_err(|error| OperatorError::pipeline(format!("cannot open `{url}`: {error}")))?;
    Ok((Arc::from(store), path))
}

/// Returns a non-empty environment variable that configures a connection.
pub fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Lists the paths below a prefix, sorted.
///
/// # Errors
/// Fails if the store cannot be listed.
pub async fn list(store: &dyn ObjectStore, prefix: &Path) -> object_store::Result<Vec<Path>> {
    let mut paths: Vec<Path> = store.list(Some(prefix)).map_ok(|found| found.location).try_collect().await?;
    paths.sort();
    Ok(paths)
}

/// Converts a failed access to a user error.
pub fn failed(location: &str, error: object_store::Error) -> OperatorError {
    if let Some(wanted) = missing_credentials(&error.to_string()) {
        return OperatorError::machine(format!("cannot read `{location}`: {wanted}"));
    }
    match error {
        object_store::Error::NotFound { .. } => OperatorError::data(format!("there is nothing at `{location}`")),
        object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. } => {
            OperatorError::machine(format!("access to `{location}` was refused: {error}"))
                .with_help("set the credentials in the environment (AWS_…, GOOGLE_…, AZURE_…, HF_TOKEN)")
        }
        error => OperatorError::machine(format!("cannot read `{location}`: {error}")),
    }
}

/// Opens a file on this machine through the local store.
///
/// # Errors
/// Fails if it cannot be opened.
pub(crate) async fn local_file(path: &std::path::Path) -> object_store::Result<object_store::GetResult> {
    let store = object_store::local::LocalFileSystem::new();
    let real =
        path.canonicalize().map_err(|source| object_store::Error::Generic { store: "local", source: source.into() })?;
    store.get(&Path::from_absolute_path(real)?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_from_the_environment() {
        let url = Url::parse("s3://bucket/a/b.jsonl").unwrap();
        let variables = [("AWS_REGION", "eu-west-1"), ("AWS_ENDPOINT", "http://127.0.0.1:1"), ("PATH", "/bin")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let (store, path) = open_with(&url, variables.into_iter()).unwrap();
        assert!(store.to_string().contains("bucket"), "{store}");
        assert_eq!(path.as_ref(), "a/b.jsonl");
    }

    #[test]
    fn unknown_schemes_are_named() {
        let url = Url::parse("ftp://host/a").unwrap();
        assert!(open(&url).unwrap_err().message.contains("ftp://host/a"));
    }

    #[test]
    fn an_s3_endpoint_is_read_and_listed() {
        let listing =
            b"<ListBucketResult><Contents><Key>a/2.jsonl</Key><LastModified>2026-01-01T00:00:00Z</LastModified>\
            <Size>1</Size></Contents><Contents><Key>a/1.jsonl</Key><LastModified>2026-01-01T00:00:00Z</LastModified>\
            <Size>2</Size></Contents></ListBucketResult>";
        let server = searchmill_fixtures::test_server::TestServer::new(&[
            ("/bucket/a/1.jsonl", b"{}"),
            ("/bucket?list-type=2&prefix=a%2F", listing),
        ]);
        server.shelf.lock().unwrap().headers = vec![("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT".to_owned())];
        let variables = [("AWS_ENDPOINT", server.address.as_str()), ("AWS_REGION", "r"), ("AWS_ACCESS_KEY_ID", "id")];
        let variables = variables.into_iter().chain([("AWS_SECRET_ACCESS_KEY", "key")]);
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let url = Url::parse("s3://bucket/a/1.jsonl").unwrap();
        let (store, path) = open_with(&url, variables).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let found = runtime.block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() });
        assert_eq!(found, "{}");
        let listed = runtime.block_on(list(store.as_ref(), &Path::from("a"))).unwrap();
        assert_eq!(listed, [Path::from("a/1.jsonl"), Path::from("a/2.jsonl")]);
        assert!(server.requests()[0].contains("AWS4-HMAC-SHA256 Credential=id/"), "{:?}", server.requests());
    }
}
