//! Folders for other programs: the parts of a table, and nothing else.
//!
//! Readers of Parquet folders (pandas, Polars) fail at the `artifact.json` beside the parts of an artifact. A view is a
//! folder of links to the parts. It is created on demand, and removed with its artifact.

use std::path::{Path, PathBuf};

use super::artifact::{Artifact, ArtifactId};
use super::error::StoreError;
use super::folder::names_in;
use super::layout::Store;
use super::place::{artifact_place, sharded};

impl Store {
    /// Returns the folder of an artifact's view, whether it exists or not.
    pub(super) fn view_folder(&self, id: &ArtifactId) -> PathBuf {
        self.root().join(sharded("views", &id.to_string()))
    }

    /// Returns a folder that contains links to the parts of a table, and nothing else.
    ///
    /// # Errors
    /// Fails if it cannot be created.
    pub fn view(&self, id: &ArtifactId, artifact: &Artifact) -> Result<PathBuf, StoreError> {
        let folder = self.view_folder(id);
        if is_whole(&folder, artifact) {
            return Ok(folder);
        }
        let made = self.temporary();
        std::fs::create_dir_all(&made).map_err(StoreError::io("create", &made))?;
        for part in &artifact.parts {
            // Relative: the store can be moved.
            let target = format!("../../../{}/{}", artifact_place(id), part.name);
            let link = made.join(&part.name);
            std::os::unix::fs::symlink(target, &link).map_err(StoreError::io("create", &link))?;
        }
        super::folder::remove(&folder)?;
        match self.rename(&made, &folder) {
            // Another process was faster.
            Err(_) if is_whole(&folder, artifact) => super::folder::remove(&made).map(|()| folder),
            outcome => outcome.map(|()| folder),
        }
    }
}

/// Whether the folder has exactly one link to each part.
fn is_whole(folder: &Path, artifact: &Artifact) -> bool {
    folder.is_dir()
        && names_in(folder).len() == artifact.parts.len()
        && artifact.parts.iter().all(|part| folder.join(&part.name).is_file())
}
