//! The external sources of an operator, and their files as the node's key saw them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something outside the pipeline that an operator reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A local path, glob pattern or URL (`s3://`, `gs://`, `az://`, `http(s)://`, `hf://`); relative paths start at
    /// the working directory. A folder stands for all regular files below it. The content of files enters the key; a URL
    /// enters it by its address.
    Path(String),
    /// Like `Path`, for data: in a folder, only visible files with one of these endings count.
    Data {
        /// As written.
        path: String,
        /// Lower case, with the dot.
        endings: &'static [&'static str],
    },
    /// Like `Data`, for results that contain the names of files: files of a pattern enter the key under their paths from
    /// [`pattern_folder`](super::pattern_folder), as files of a folder do under their paths from the folder.
    Named {
        /// As written.
        path: String,
        /// Lower case, with the dot.
        endings: &'static [&'static str],
    },
    /// A path, glob pattern or folder passed to a program. The program sees the path, so file names in the key begin
    /// with it, and empty folders count.
    Argument(String),
    /// A local file that is read if it exists.
    Optional(String),
    /// A file that [`Declaration::fetches`](super::Declaration::fetches) downloads from `address` to `path`, outside
    /// the store. Its content enters the key, which is unknown until the file exists.
    Fetched {
        /// Path of the downloaded file.
        path: PathBuf,
        /// Origin, for messages.
        address: String,
    },
    /// Something that [`Declaration::fetches`](super::Declaration::fetches) must resolve before the key is known (the
    /// commit of a branch). Once resolved, the operator lists another source instead.
    Awaited {
        /// Origin, for messages.
        address: String,
    },
    /// A system program: its `--version` output enters the key, or its content if it prints none.
    Program(PathBuf),
    /// A program identified by its content.
    Executable(PathBuf),
    /// Text that identifies something that cannot be read here (a model id and commit); enters the key unchanged.
    Identity(String),
}

impl Source {
    /// Returns the source as written, for messages and to look up its files.
    pub fn written(&self) -> String {
        match self {
            Self::Path(path)
            | Self::Argument(path)
            | Self::Optional(path)
            | Self::Data { path, .. }
            | Self::Named { path, .. } => path.clone(),
            Self::Fetched { address, .. } | Self::Awaited { address } => address.clone(),
            Self::Program(path) | Self::Executable(path) => path.display().to_string(),
            Self::Identity(text) => text.clone(),
        }
    }

    /// Returns the path, pattern or URL of files that must exist.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Path(path) | Self::Argument(path) | Self::Data { path, .. } | Self::Named { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Whether the source is on another machine. It is then identified by its address alone.
    pub fn is_remote(&self) -> bool {
        self.path().is_some_and(|path| path.contains("://") && !path.starts_with("file://"))
    }
}

/// Opens a file to read it. A pipe, socket or device is an error: reading it may block for ever, and cannot be repeated.
///
/// # Errors
/// Fails if the path is no regular file (a link to one is followed), or cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Before it is opened: opening a pipe waits for its writer.
    let found = std::fs::metadata(path)?;
    match (found.is_file(), found.is_dir()) {
        (true, _) => File::open(path),
        (_, true) => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe, socket or device, not a regular file")),
    }
}

/// Why a source cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceProblem {
    /// The path, as written, does not exist.
    #[error("`{0}` is not there")]
    NotFound(String),
    /// The file from this address has not been fetched yet.
    #[error("`{0}` is not here yet")]
    NotFetched(String),
    /// The file exists but cannot be read.
    #[error("`{path}` cannot be read: {reason}")]
    Unreadable {
        /// As written.
        path: String,
        /// Why.
        reason: String,
    },
    /// The file, as written, keeps changing while it is read.
    #[error("`{0}` changes again and again while it is read")]
    Changing(String),
    /// A pipe, socket or device, as written: its content cannot be read twice.
    #[error("`{0}` is not a regular file: write its content to a file and name that")]
    NotAFile(String),
    /// The run was stopped.
    #[error("interrupted")]
    Stopped,
}

/// The local files behind a node's sources, as its key saw them; implemented by the driver. An operator must read only
/// these files: the result is recorded only if none of them changed meanwhile.
pub trait SourceFiles: Send + Sync {
    /// Returns the files behind a source, given as written, in path order; `None`: the key has no such source.
    fn files(&self, written: &str) -> Option<Vec<PathBuf>>;

    /// Whether the key covers a file, or the list of a folder, whatever source it belongs to; `None`: there is no key.
    fn covers(&self, _path: &Path) -> Option<bool> {
        None
    }

    /// Wraps the bytes of one of these files: while they are read, they are compared with what the key saw, if it is
    /// known.
    fn watched(self: Arc<Self>, _path: &Path, bytes: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        bytes
    }
}
