//! Errors of a store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::artifacts::artifact::ArtifactId;
use crate::error::{OperatorError, missing_credentials, root_cause};

/// Damage of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A file is missing.
    #[error("a file of it is missing")]
    Missing,
    /// A file differs from what was written.
    #[error("a file of it differs from what was written")]
    Corrupt,
    /// The files were removed on record: what made them makes them again.
    #[error("its files were removed on record")]
    Released,
}

/// Why a floor cannot be read. The text follows the name of its file or object.
#[derive(Debug, thiserror::Error)]
pub enum FloorFault {
    /// It was changed.
    #[error("is damaged (its checksum does not fit): remove it to use answers from before `--force`")]
    Checksum,
    /// It is not a floor.
    #[error("is damaged ({0}): remove it to use answers from before `--force`")]
    Json(#[source] serde_json::Error),
}

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
        source: io::Error,
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
        "cannot {action} the shared store {url}: {}; what this machine has computed and paid for is kept in {cache}, \
         and the next run with this store uploads what is missing (until then, --store {cache} works alone)",
        reason(source)
    )]
    Shared {
        /// The failed action.
        action: &'static str,
        /// The store.
        url: String,
        /// The cause.
        source: Box<object_store::Error>,
        /// The local copy.
        cache: PathBuf,
    },
    /// The failure of an earlier attempt, which all who depend on it report.
    #[error(transparent)]
    Earlier(Arc<Self>),
    /// A record cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A row cannot be encoded.
    #[error(transparent)]
    Row(#[from] arrow::error::ArrowError),
    /// A cached row is too long for its segment.
    #[error(transparent)]
    TooLong(#[from] std::num::TryFromIntError),
    /// An operation of the engine failed because of the machine.
    #[error("{}", .0.text())]
    Machine(#[source] OperatorError),
    /// The thread that looks at a lease died.
    #[error("cannot check the lease: {0}")]
    LeaseCheck(#[source] tokio::task::JoinError),
    /// The system refuses another thread or process.
    #[error("the system allows no more threads or processes: {0}")]
    NoThreads(#[source] io::Error),
    /// The folder has other contents.
    #[error("{0} is not a store and contains other files (`{1}`): choose another folder with --store")]
    NotAStore(PathBuf, String),
    /// The URL of a shared store contains credentials.
    #[error("the URL of a store must hold no user name or password: use environment variables (AWS_ACCESS_KEY_ID, …)")]
    UserInfo,
    /// The address of a shared store is not a URL.
    #[error("cannot use the store `{0}`: {1}")]
    Url(String, #[source] url::ParseError),
    /// A shared store cannot be opened.
    #[error("cannot use the store `{0}`: {reason}", reason = reason(.1))]
    Unusable(String, #[source] Box<object_store::Error>),
    /// The threads of a shared store cannot be started.
    #[error("cannot use the store `{0}`: cannot start threads: {1}")]
    Threads(String, #[source] io::Error),
    /// The file that identifies the shared store of a local copy is damaged.
    #[error(
        "{0} is damaged, so that nobody knows which store this is a copy of: remove it if this folder is the local copy \
         of that store and no other, or name another --store-cache"
    )]
    Nameplate(PathBuf),
    /// The local copy belongs to a shared store that was at the same URL before.
    #[error(
        "{cache} is the local copy of a store that was at {url} before; another one is there now. It may hold results and \
         paid rows that are nowhere else. Name another folder with --store-cache, and bring over what was paid for: \
         `searchmill export --memo rows.tar.zst --store {cache}`, then `searchmill import rows.tar.zst`"
    )]
    OtherStore {
        /// The store.
        url: String,
        /// The local copy.
        cache: PathBuf,
    },
    /// Another machine is collecting the shared store.
    #[error("another machine is collecting this store; try again later")]
    Collecting,
    /// Another machine took over the collection of the shared store.
    #[error("another machine is collecting this store now; try again later")]
    CollectionLost,
    /// The artifact has no description, or is of a kind that this build does not know.
    #[error("the artifact {short} is gone from the store: run its pipeline again", short = .0.digest().short())]
    Gone(ArtifactId),
    /// An artifact to export is not in the store.
    #[error("the artifact {short} is not in the store any more", short = .0.digest().short())]
    NotInStore(ArtifactId),
    /// An artifact to move is not in the other store.
    #[error("the artifact {0} is gone from {1}")]
    GoneFrom(ArtifactId, String),
    /// An artifact to import has no description.
    #[error("the artifact {0} has no description")]
    Undescribed(ArtifactId),
    /// The files of the artifact were released; how, and how to make them again.
    #[error("the artifact {short} was {1}", short = .0.digest().short())]
    Released(ArtifactId, String),
    /// The artifact is damaged.
    #[error("the artifact {short} is damaged in the store: {1}", short = .0.digest().short())]
    Damaged(ArtifactId, #[source] Damage),
    /// A file of a table is damaged.
    #[error("{0} is damaged: {1}")]
    DamagedPart(PathBuf, #[source] parquet::errors::ParquetError),
    /// A damaged artifact cannot be attested.
    #[error("the artifact {short} cannot be attested: {1}", short = .0.digest().short())]
    NotAttested(ArtifactId, #[source] Damage),
    /// An artifact cannot be attested because its files were released; how, and how to make them again.
    #[error("the artifact {short} cannot be attested: it was {1}", short = .0.digest().short())]
    ReleasedUnattested(ArtifactId, String),
    /// Other processes merge the segments of a memo again and again.
    #[error("{0} keeps changing")]
    KeepsChanging(PathBuf),
    /// The floor of a forced node is damaged.
    #[error("{0} {1}")]
    Floor(PathBuf, #[source] FloorFault),
    /// The record of what a run spent is damaged.
    #[error("{path}:{line}: {what}; to count what the record of its run says instead, remove the file")]
    Spending {
        /// The record.
        path: PathBuf,
        /// Number of the first damaged line, from 1.
        line: usize,
        /// The damage.
        what: &'static str,
    },
    /// The name of a pin is invalid.
    #[error("`{0}` is not a valid pin name: use letters, digits and . _ - @ = , +")]
    PinName(String),
    /// A pin of that name protects another artifact.
    #[error(
        "the pin `{0}` holds another artifact ({short}): `searchmill unpin {0}` first, or give another --name",
        short = .1.digest().short()
    )]
    PinTaken(String, ArtifactId),
    /// The file of a pin is damaged.
    #[error("{0} is no pin, or was changed: repair or remove it")]
    NotAPin(PathBuf),
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

/// Returns the message of an object store with its innermost cause.
pub(super) fn reason(error: &object_store::Error) -> String {
    let (message, innermost) = (error.to_string(), root_cause(error));
    if let Some(missing) = missing_credentials(&message) {
        return missing.to_owned();
    }
    // Most clients repeat the cause in their own message.
    if message.contains(&innermost) { message } else { format!("{message} ({innermost})") }
}

/// Adds to an error of the system what failed, and where.
pub(crate) trait IoContext<T> {
    /// Names the failed action and its path.
    fn context(self, action: &'static str, path: &Path) -> Result<T, StoreError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io { action, path: path.to_owned(), source })
    }
}

impl From<StoreError> for OperatorError {
    fn from(error: StoreError) -> Self {
        Self::machine(error.to_string())
    }
}
