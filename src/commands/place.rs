//! Which store is meant by `--store`, and where the local copy of a shared one lies.

use std::path::{Path, PathBuf};

use searchmill_engine::fingerprint::hash_bytes;

use crate::exit::Failure;

/// Which store.
pub(super) enum Place {
    /// A folder of this machine.
    Folder(PathBuf),
    /// One that several machines share.
    Shared {
        /// Its address.
        url: String,
        /// Its local copy.
        cache: PathBuf,
    },
}

impl Place {
    pub(super) fn new(store: &Path, cache: Option<&Path>, directory: &Path) -> Result<Self, Failure> {
        let Some(url) = store.to_str().filter(|text| text.contains("://")) else {
            return Ok(Self::Folder(directory.join(store)));
        };
        let cache = match cache {
            Some(cache) => directory.join(cache),
            None => default_cache(url)?,
        };
        Ok(Self::Shared { url: url.trim_end_matches('/').to_owned(), cache })
    }
}

/// A folder for this store alone: the same name on another server is another store.
fn default_cache(url: &str) -> Result<PathBuf, Failure> {
    let setting = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let base =
        setting("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(Path::new(&setting("HOME")?).join(".cache")));
    let base = base.ok_or_else(|| {
        Failure::usage("there is no folder for the local copy of the store: neither HOME nor XDG_CACHE_HOME is set")
            .with_help("name one with --store-cache")
    })?;
    let server = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find_map(setting);
    let digest = hash_bytes(format!("{url}\n{}", server.unwrap_or_default()).as_bytes());
    let plain: String = url.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(60).collect();
    Ok(base.join("searchmill").join("stores").join(format!("{plain}-{}", digest.short())))
}
