//! Errors of a store.

use std::path::{Path, PathBuf};

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The failed action (`write`, `open`, …).
        action: &'static str,
        /// The affected path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The store has the format of another version.
    #[error("the store at {path} has format {found}, this searchmill reads format {wanted}: {}", advice(found, *wanted))]
    Format {
        /// The store.
        path: PathBuf,
        /// Its format.
        found: String,
        /// The format of this version.
        wanted: u32,
    },
    /// Objects of a shared store cannot be read or written.
    #[error(
        "cannot {action} the shared store {url}: {reason}; what this machine has computed and paid for is kept in {cache}, \
         and the next run with this store uploads what is missing (until then, --store {cache} works alone)"
    )]
    Shared {
        /// The failed action.
        action: String,
        /// The store.
        url: String,
        /// The cause.
        reason: String,
        /// The local copy.
        cache: PathBuf,
    },
    /// A location that this build cannot use.
    #[error("{0}")]
    Location(String),
}

/// What to do about a store of another format.
fn advice(found: &str, wanted: u32) -> &'static str {
    if found.parse::<u32>().is_ok_and(|found| found < wanted) {
        "to keep its paid answers, run `searchmill export --memo answers.tar.zst` with the searchmill that wrote it and \
         `searchmill import answers.tar.zst` with this one; then start over with another --store, or remove this store"
    } else {
        "use the searchmill that wrote it, or another --store"
    }
}

impl StoreError {
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// JSON could not be written.
impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Location(error.to_string())
    }
}

impl From<StoreError> for crate::error::OperatorError {
    fn from(error: StoreError) -> Self {
        Self::machine(error.to_string())
    }
}
