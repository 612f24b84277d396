//! The location of a store: a folder, or an address shared by several machines.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::fingerprint::hash_bytes;
use crate::store::{Store, StoreError};

/// The location of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// A folder on this machine.
    Folder(PathBuf),
    /// An address shared by several machines.
    Shared {
        /// The address.
        url: String,
        /// The local copy.
        cache: PathBuf,
    },
}

impl StorePlace {
    /// Parses the location of a store: a folder, or an address with `://`. Relative paths start at `directory`. Without
    /// a `cache`, the local copy of a shared store is a folder in the user's cache.
    ///
    /// # Errors
    /// Fails if the store is shared and the user has no cache folder.
    pub fn new(store: &Path, cache: Option<&Path>, directory: &Path) -> Result<Self, Failure> {
        let Some(url) = store.to_str().filter(|text| text.contains("://")) else {
            return Ok(Self::Folder(directory.join(store)));
        };
        let cache = match cache {
            Some(cache) => directory.join(cache),
            None => default_cache(url)?,
        };
        Ok(Self::Shared { url: url.trim_end_matches('/').to_owned(), cache })
    }

    /// Returns the location for messages, relative to `directory`.
    pub(super) fn shown(&self, directory: &Path) -> String {
        match self {
            Self::Folder(folder) => folder.strip_prefix(directory).unwrap_or(folder).display().to_string(),
            Self::Shared { url, .. } => url.clone(),
        }
    }

    /// Returns the folders and addresses that no pipeline may write to.
    pub(super) fn roots(&self) -> Vec<&Path> {
        match self {
            Self::Folder(folder) => vec![folder.as_path()],
            Self::Shared { url, cache } => vec![Path::new(url), cache.as_path()],
        }
    }

    /// Opens the store, and creates it if it does not exist.
    pub(super) fn open(&self) -> Result<Store, StoreError> {
        match self {
            Self::Folder(folder) => Store::open(folder),
            Self::Shared { url, cache } => Store::open_shared(url, cache),
        }
    }

    /// Opens the store for reading: nothing is created, and a missing store is empty.
    pub(super) fn look(&self) -> Result<Store, StoreError> {
        match self {
            Self::Folder(folder) => Store::look(folder),
            Self::Shared { url, cache } => Store::look_shared(url, cache),
        }
    }
}

/// Returns a cache folder for this store alone: the same name on another server is another store.
fn default_cache(url: &str) -> Result<PathBuf, Failure> {
    let base = if let Some(cache) = variable("XDG_CACHE_HOME") {
        PathBuf::from(cache)
    } else if let Some(home) = variable("HOME") {
        Path::new(&home).join(".cache")
    } else {
        let failure = Failure::usage(
            "there is no folder for the local copy of the store: neither HOME nor XDG_CACHE_HOME is set",
        );
        return Err(failure.with_help("name one with --store-cache"));
    };
    // The most specific one first.
    let server = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find_map(variable);
    let digest = hash_bytes(format!("{url}\n{}", server.unwrap_or_default()).as_bytes());
    // The name is for people, the digest tells addresses apart that look alike.
    let plain: String = url.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(60).collect();
    Ok(base.join("searchmill").join("stores").join(format!("{plain}-{}", digest.short())))
}

/// Returns an environment variable; an empty one counts as not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
