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
    /// A local file that is read where there is one.
    Optional(String),
    /// A file that [`Operator::fetch`](super::Operator::fetch) brings from `address` to `path`, outside the store. Its
    /// content enters the key, which is not known until it is there.
    Fetched {
        /// Where it lies once it was fetched.
        path: PathBuf,
        /// Where it comes from, for messages.
        address: String,
    },
    /// Something that [`Operator::fetch`](super::Operator::fetch) has to find out before the key is known (the commit of a
    /// branch): then the operator names another source in its place.
    Awaited {
        /// Where it comes from, for messages.
        address: String,
    },
    /// A program of the system: what it answers to `--version` enters the key, or its content where it does not answer.
    Program(PathBuf),
    /// Text that identifies something that cannot be read here (a model id and commit); enters the key as it stands.
    Identity(String),
}

impl Source {
    /// As written, for messages and to find its files again.
    #[must_use]
    pub fn written(&self) -> String {
        match self {
            Self::Path(path) | Self::Optional(path) | Self::Data { path, .. } => path.clone(),
            Self::Fetched { address, .. } | Self::Awaited { address } => address.clone(),
            Self::Program(path) => path.display().to_string(),
            Self::Identity(text) => text.clone(),
        }
    }

    /// The path, pattern or URL of files that must be there.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Path(path) | Self::Data { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Does it lie on another machine? Then it is identified by its address alone.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.path().is_some_and(|path| path.contains("://") && !path.starts_with("file://"))
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
