//! Exit codes, and failures that end a command.

use searchmill_engine::diagnostic::{Diagnostic, SourceMap};
use searchmill_engine::lineage::archive::ArchiveError;
use searchmill_engine::store::StoreError;

/// Everything went well.
pub(crate) const OK: u8 = 0;
/// A node failed.
pub(crate) const FAILED: u8 = 1;
/// The command line or the pipeline is wrong.
pub(crate) const USAGE: u8 = 2;
/// The store cannot be used.
pub(crate) const STORE: u8 = 5;
/// `audit`: all that was looked at is as recorded, and something was not looked at.
pub(crate) const NOT_CHECKED: u8 = 6;
/// `plan --detailed-exitcode`: there is work to do.
pub(crate) const WORK: u8 = 10;

/// Why a command ended.
pub enum Failure {
    /// The pipeline is wrong: every finding, with the texts it points into.
    Pipeline(Vec<Diagnostic>, Box<SourceMap>),
    /// The command line asks for something that is not there.
    Usage {
        /// What is wrong.
        message: String,
        /// How to mend it.
        help: Option<String>,
    },
    /// The store cannot be used.
    Store(StoreError),
    /// Somebody else holds a lock.
    Busy(String),
    /// Reading or showing something failed.
    Other(String),
}

impl Failure {
    /// A mistake on the command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), help: None }
    }

    /// With advice.
    pub(crate) fn with_help(self, advice: impl Into<String>) -> Self {
        match self {
            Self::Usage { message, .. } => Self::Usage { message, help: Some(advice.into()) },
            other => other,
        }
    }

    /// The exit code it leads to.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Pipeline(..) | Self::Usage { .. } => USAGE,
            Self::Store(_) | Self::Busy(_) => STORE,
            Self::Other(_) => FAILED,
        }
    }
}

impl From<searchmill_engine::lineage::NotFound> for Failure {
    fn from(error: searchmill_engine::lineage::NotFound) -> Self {
        Self::Usage { message: error.message, help: error.help }
    }
}

impl From<searchmill_engine::operator::OperatorError> for Failure {
    fn from(error: searchmill_engine::operator::OperatorError) -> Self {
        match error.blame {
            searchmill_engine::operator::Blame::Machine => Self::Store(StoreError::Location(error.message)),
            _ => Self::Other(error.message),
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
        Self::Other(error.to_string())
    }
}
