//! The manifest of a written artifact, stored beside the file.

use std::path::Path;

use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};

use crate::source::format::{Compression, Format};

/// Name of the manifest in the artifact.
const NAME: &str = "manifest.json";

/// Describes a written artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The files, by path relative to the destination. For rows: one file, named like the destination.
    pub files: Vec<WrittenFile>,
    /// Whether the destination is a folder.
    pub folder: bool,
    /// The kind of the rows or of the folder.
    pub kind: String,
    /// Content digest of the written artifact.
    pub artifact: String,
    /// Number of rows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rows: Option<u64>,
    /// Format of the rows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub format: Option<Format>,
    /// Compression of the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub compression: Option<Compression>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Path relative to the destination folder.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
}

impl Manifest {
    /// Returns the total number of bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the manifest's text, equal at every destination.
    pub fn text(&self) -> Result<String, OperatorError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| OperatorError::engine(error.to_string()))?;
        Ok(text + "\n")
    }

    pub fn save(&self, tree: &Path) -> Result<(), OperatorError> {
        Ok(fs_err::write(tree.join(NAME), self.text()?)?)
    }

    /// Loads the manifest of an artifact that `write` created.
    ///
    /// # Errors
    /// Fails if it is missing or cannot be read.
    pub fn load(tree: &Path) -> Result<Self, OperatorError> {
        Self::read(&tree.join(NAME))
    }

    /// Reads the manifest at `path`.
    pub fn read(path: &Path) -> Result<Self, OperatorError> {
        let text = std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error))?;
        serde_json::from_str(&text).map_err(|error| cannot_read(path, &error))
    }
}

fn cannot_read(path: &Path, error: &dyn std::fmt::Display) -> OperatorError {
    OperatorError::machine(format!("cannot read {}: {error}", path.display()))
}
