//! Descriptions of artifacts: `<id>.json` beside the folder `<id>`, so that the folder contains the artifact's files and
//! nothing else. Stores of earlier versions have it in the folder, as `artifact.json`; it is moved when the artifact is
//! opened.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::artifact::{Artifact, ArtifactId};
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::paths::{artifact_place, description_place};

/// The description in the folders of earlier versions.
pub(crate) const IN_FOLDER: &str = "artifact.json";

/// A longer file, in bytes, is damaged: it may be longer than memory. A description takes some 200 bytes a file.
const LONGEST: u64 = 1 << 30;

/// A description that was read.
pub(super) struct Described {
    pub(crate) artifact: Artifact,
    pub(crate) path: PathBuf,
    /// Time of the description; the files of its artifact are older unless they were changed.
    pub(crate) at: Option<SystemTime>,
}

impl Described {
    /// Reads a description of that artifact.
    fn read(path: PathBuf, id: &ArtifactId) -> Option<Self> {
        let file = File::open(&path).ok()?;
        let found = file.metadata().ok()?;
        if found.len() > LONGEST {
            return None;
        }
        let mut text = Vec::with_capacity(found.len() as usize);
        // Without `take`, `read_to_end` asks for the length again.
        file.take(found.len()).read_to_end(&mut text).ok()?;
        let artifact: Artifact = serde_json::from_slice(&text).ok()?;
        if artifact.id() == *id { Some(Self { artifact, path, at: found.modified().ok() }) } else { None }
    }
}

/// Reads a description of that artifact.
pub(crate) fn read_description(path: &Path, id: &ArtifactId) -> Option<Artifact> {
    Described::read(path.to_owned(), id).map(|described| described.artifact)
}

/// Whether the file describes the artifact in whose folder an earlier version put it.
pub(crate) fn is_in_folder(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    ArtifactId::parse(&name).is_some_and(|id| read_description(&folder.join(IN_FOLDER), &id).is_some())
}

impl Store {
    /// Returns the folder of an artifact.
    pub fn artifact_folder(&self, id: &ArtifactId) -> PathBuf {
        self.root().join(artifact_place(id))
    }

    /// Returns the file that describes an artifact, whether it exists or not.
    pub(super) fn description_path(&self, id: &ArtifactId) -> PathBuf {
        self.root().join(description_place(id))
    }

    /// Returns the description of a local artifact.
    pub(super) fn described_here(&self, id: &ArtifactId) -> Option<Described> {
        let folder = self.artifact_folder(id);
        if !folder.is_dir() {
            return None;
        }
        Described::read(self.description_path(id), id).or_else(|| Described::read(folder.join(IN_FOLDER), id))
    }

    /// Returns the description of a local artifact.
    pub(crate) fn artifact_here(&self, id: &ArtifactId) -> Option<Artifact> {
        self.described_here(id).map(|described| described.artifact)
    }

    /// Moves a finished folder to the place of its artifact. Returns `false` if another process has put an intact one
    /// there meanwhile: that one stays, since its files may be open.
    pub(crate) fn settle(&self, id: &ArtifactId, artifact: &Artifact, folder: &Path) -> Result<bool, StoreError> {
        if self.artifact_folder(id).exists() {
            // Judged by its own description: a new one would make changed files look older than it.
            if self.check_here(id).is_ok() {
                return Ok(false);
            }
            self.discard(id)?;
        }
        match self.install(id, artifact, folder) {
            Ok(()) => Ok(true),
            // A folder cannot be renamed onto one with files: another process was faster.
            Err(_) if self.check_here(id).is_ok() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Moves a folder with all files of an artifact into place, where nothing may be.
    ///
    /// # Errors
    /// Fails if it cannot be moved.
    pub(crate) fn install(&self, id: &ArtifactId, artifact: &Artifact, folder: &Path) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(artifact)?;
        let (written, target) = (self.temporary(), self.description_path(id));
        // Not flushed: a torn description does not match its digest and is a cache miss.
        nofollow::write(&written, text).context("write", &written)?;
        // Before the folder: a folder without a description counts as damaged, a description without a folder as none.
        self.rename(&written, &target)?;
        self.rename(folder, &self.artifact_folder(id))
    }

    /// Moves an artifact's files to `tmp/`. Returns their folder there, or `None` if there is none.
    ///
    /// # Errors
    /// Fails if it cannot be moved.
    pub(crate) fn uninstall(&self, id: &ArtifactId) -> Result<Option<PathBuf>, StoreError> {
        let (folder, trash) = (self.artifact_folder(id), self.temporary());
        // One rename: a process that is killed while it removes many files leaves no half of an artifact.
        let moved = if_there(nofollow::rename(&folder, &trash)).context("remove", &folder)?;
        let description = self.description_path(id);
        nofollow::remove(&description).context("remove", &description)?;
        Ok(moved.map(|()| trash))
    }
}
