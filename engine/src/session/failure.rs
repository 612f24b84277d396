//! The errors of a session.

use std::fmt;
use std::io::ErrorKind;

use crate::diagnostic::{Diagnostic, SourceMap};
use crate::endpoint::without_user_info;
use crate::error::{Blame, OperatorError};
use crate::lineage::archive::ArchiveError;
use crate::lineage::{Missing, NotFound};
use crate::store::{ArtifactId, Store, StoreError};

/// An error of a session.
///
/// Its help may name options of the program `searchmill` (`--run RUN`, `--store`): say what they are in yours.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The pipeline is invalid: all findings, and the texts they point into.
    Pipeline(Vec<Diagnostic>, Box<SourceMap>),
    /// The caller asked for something that does not exist or does not fit.
    Usage {
        /// What is wrong.
        message: String,
        /// How to fix it.
        help: Option<String>,
    },
    /// The store cannot be used.
    Store(StoreError),
    /// Another process holds a lock.
    Busy(String),
    /// Anything else, for example a file that cannot be written.
    Other(String),
}

impl Failure {
    /// Creates a usage error.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), help: None }
    }

    /// Adds help to a usage error.
    #[must_use]
    pub fn with_help(self, advice: impl Into<String>) -> Self {
        match self {
            Self::Usage { message, .. } => Self::Usage { message, help: Some(advice.into()) },
            other => other,
        }
    }

    /// Returns the exit code for a program that ends with this error: 2 pipeline or usage, 5 store, disk or a lock that
    /// another process holds, 1 anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Pipeline(..) | Self::Usage { .. } => 2,
            Self::Store(_) | Self::Busy(_) => 5,
            Self::Other(_) => 1,
        }
    }
}

/// Fails if the files of an artifact were released.
pub(super) fn check_released(store: &Store, id: &ArtifactId) -> Result<(), Failure> {
    let Some(note) = store.release_of(id) else { return Ok(()) };
    // A shared store fetches the files that are not here.
    if store.is_shared() {
        return Ok(());
    }
    let (node, pipeline) = (&note.of.node, &note.of.pipeline);
    let failure = Failure::usage(format!("this output of `{node}` was released to save space: its files are not here"));
    Err(failure.with_help(format!("`searchmill run FILE {node}`, with the file of `{pipeline}`, makes it again")))
}

/// Formats one line per finding (`FILE:LINE:COLUMN: message (help)`), or a single line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pipeline(findings, sources) => {
                let lines: Vec<String> = findings.iter().map(|finding| sources.line(finding)).collect();
                f.write_str(&without_user_info(&lines.join("\n")))
            }
            Self::Usage { message, help: Some(help) } => write!(f, "{message} ({help})"),
            Self::Usage { message, help: None } | Self::Busy(message) | Self::Other(message) => f.write_str(message),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<NotFound> for Failure {
    fn from(error: NotFound) -> Self {
        match error.cause {
            Missing::Unreadable => Self::Other(error.message),
            Missing::Unknown | Missing::Changed => Self::Usage { message: error.message, help: error.help },
        }
    }
}

/// An error of the machine becomes [`Failure::Store`], any other one [`Failure::Other`].
impl From<OperatorError> for Failure {
    fn from(error: OperatorError) -> Self {
        match error.blame {
            Blame::Machine => Self::Store(StoreError::Machine(error)),
            _ => Self::Other(error.text()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Store(error) => Self::Store(error),
            ArchiveError::Refused(_) => Self::Other(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.raw_os_error() == Some(libc::EAGAIN) {
            return Self::Store(StoreError::NoThreads(error));
        }
        match error.kind() {
            // The disk's fault, whichever file it was.
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem => {
                OperatorError::from(error).into()
            }
            _ => Self::Other(error.to_string()),
        }
    }
}
