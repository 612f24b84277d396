//! What an operator reads outside the pipeline, and the files behind it as the node's key saw them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something outside the pipeline that an operator reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A local path, glob pattern or URL (`s3://`, `gs://`, `az://`, `http(s)://`, `hf://`), relative paths from the
    /// working directory. A folder stands for all regular files below it. Its content enters the key.
    Path(String),
    /// The same for data: of a folder only visible files count whose names have one of these endings.
    Data {
        /// As written.
        path: String,
        /// In lower case, with their dots.
        endings: &'static [&'static str],
    },
    /// A path, glob pattern or folder that a program is given. The program sees the path, so the names of its files in the
    /// key begin with it, and empty folders count.
    Argument(String),
    /// A local file that is read where there is one.
    Optional(String),
    /// A file that [`Declaration::fetches`](super::Declaration::fetches) brings from `address` to `path`, outside the store. Its
    /// content enters the key, which is not known until it is there.
    Fetched {
        /// Where it lies once it was fetched.
        path: PathBuf,
        /// Where it comes from, for messages.
        address: String,
    },
    /// Something that [`Declaration::fetches`](super::Declaration::fetches) has to find out before the key is known (the commit of a
    /// branch): then the operator names another source in its place.
    Awaited {
        /// Where it comes from, for messages.
        address: String,
    },
    /// A program of the system: what it answers to `--version` enters the key, or its content where it does not answer.
    Program(PathBuf),
    /// A program that is known by its content.
    Executable(PathBuf),
    /// Text that identifies something that cannot be read here (a model id and commit); enters the key as it stands.
    Identity(String),
}

impl Source {
    /// As written, for messages and to find its files again.
    #[must_use]
    pub fn written(&self) -> String {
        match self {
            Self::Path(path) | Self::Argument(path) | Self::Optional(path) | Self::Data { path, .. } => path.clone(),
            Self::Fetched { address, .. } | Self::Awaited { address } => address.clone(),
            Self::Program(path) | Self::Executable(path) => path.display().to_string(),
            Self::Identity(text) => text.clone(),
        }
    }

    /// The path, pattern or URL of files that must be there.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Path(path) | Self::Argument(path) | Self::Data { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Does it lie on another machine? Then it is identified by its address alone.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.path().is_some_and(|path| path.contains("://") && !path.starts_with("file://"))
    }
}

/// What a source cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceProblem {
    /// Nothing is there.
    NotFound {
        /// As written.
        path: String,
    },
    /// It has not been fetched yet.
    NotFetched {
        /// Where it comes from.
        address: String,
    },
    /// It is there but cannot be read.
    Unreadable {
        /// As written.
        path: String,
        /// Why.
        reason: String,
    },
    /// Something writes to it again and again while it is read.
    Changing {
        /// As written.
        path: String,
    },
    /// A pipe, socket or device: its content cannot be read twice.
    NotAFile {
        /// As written.
        path: String,
    },
    /// The run was told to stop.
    Stopped,
}

impl std::fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound { path } => write!(f, "`{path}` is not there"),
            Self::NotFetched { address } => write!(f, "`{address}` is not here yet"),
            Self::Unreadable { path, reason } => write!(f, "`{path}` cannot be read: {reason}"),
            Self::Changing { path } => write!(f, "`{path}` changes again and again while it is read"),
            Self::NotAFile { path } => {
                write!(f, "`{path}` is not a regular file: write its content to a file and name that")
            }
            Self::Stopped => f.write_str("interrupted"),
        }
    }
}

/// The local files behind a node's sources, as its key saw them; implemented by the driver. What an operator reads must be
/// in this list: the result is recorded only if nothing in it changed meanwhile.
pub trait SourceFiles: Send + Sync {
    /// The files behind a source, as written, in path order; `None`: the key knows no such source.
    fn files(&self, written: &str) -> Option<Vec<PathBuf>>;

    /// Compares the bytes of one of these files with what the key saw while they are read.
    fn watched(self: Arc<Self>, path: &Path, bytes: Box<dyn Read + Send>) -> Box<dyn Read + Send>;
}

/// No files.
pub struct NoSources;

impl SourceFiles for NoSources {
    fn files(&self, _written: &str) -> Option<Vec<PathBuf>> {
        None
    }

    fn watched(self: Arc<Self>, _path: &Path, bytes: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        bytes
    }
}
