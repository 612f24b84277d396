//! Opens artifacts and verifies their files. Identifies a folder outside the store by its content.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rayon::prelude::*;
use searchmill_schemas::RecordKind;

use super::artifact::{Artifact, ArtifactId, ArtifactType, Part};
use super::description::{Described, IN_FOLDER, is_in_folder, read_description};
use super::table::file_part;
use crate::error::OperatorError;
use crate::fingerprint::hash_file;
use crate::operator::{InputArtifact, PortType, RowsInput, TreeInput, TreeKind};
use crate::store::error::{Damage, IoContext, StoreError};
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::records::node_result::OutputRecord;

fn is_whole(folder: &Path, part: &Part) -> bool {
    hash_file(&folder.join(&part.name)).ok() == Some(part.digest)
}

/// Judges a part by its size and time. It is read only if it changed after the artifact was described; returns whether
/// it was.
fn look_at(folder: &Path, part: &Part, described: Option<SystemTime>) -> Result<bool, Damage> {
    let Ok(metadata) = fs::symlink_metadata(folder.join(&part.name)) else { return Err(Damage::Missing) };
    let fits = metadata.is_file() && metadata.len() == part.bytes;
    // A file that was last changed before it was described is intact, unless its time was forged.
    let older = matches!((metadata.modified(), described), (Ok(changed), Some(described)) if changed <= described);
    if fits && (older || is_whole(folder, part)) { Ok(!older) } else { Err(Damage::Corrupt) }
}

/// Returns the id that the folder would have as an artifact. Reads all its files.
///
/// # Errors
/// Fails if a file cannot be read.
pub(crate) fn outside_id(folder: &Path, kind: TreeKind) -> Result<ArtifactId, OperatorError> {
    let described = is_in_folder(folder);
    let mut names = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(current) = pending.pop() {
        for entry in fs::read_dir(&current).context("read", &current)? {
            let path = entry.context("read", &current)?.path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap_or(&path);
            // The description in a store of an earlier version is not part of the content.
            if !(described && name == Path::new(IN_FOLDER)) {
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    let parts = names.into_iter().map(|name| file_part(folder, name, 0)).collect::<Result<_, _>>()?;
    Ok(Artifact { artifact_type: (&PortType::Tree(kind)).into(), parts }.id())
}

impl Store {
    /// Returns the description of an artifact if it exists and matches its id.
    pub fn artifact(&self, id: &ArtifactId) -> Option<Artifact> {
        self.artifact_here(id).or_else(|| self.remote.as_ref()?.artifact(id))
    }

    /// Checks that an artifact's files exist with their sizes, here or in the shared store. The content is checked if a
    /// local file changed after the artifact was described, when it is fetched, and by [`Store::verify`].
    ///
    /// # Errors
    /// The damage.
    pub fn check(&self, id: &ArtifactId) -> Result<(), Damage> {
        let here = self.check_here(id);
        let (Err(_), Some(remote)) = (here, &self.remote) else { return here };
        match remote.check(id) {
            // Damaged here and missing there counts as damaged.
            Err(Damage::Missing) => here,
            there => there,
        }
    }

    /// Whether an artifact's files are on this machine.
    pub fn is_here(&self, id: &ArtifactId) -> bool {
        self.check_here(id).is_ok()
    }

    pub(crate) fn check_here(&self, id: &ArtifactId) -> Result<(), Damage> {
        self.look_here(id).map(drop)
    }

    /// Checks an output's artifact like [`Store::check`], and that its description agrees with the record.
    ///
    /// # Errors
    /// The damage; a record that does not fit its artifact counts as damaged.
    pub fn check_output(&self, output: &OutputRecord) -> Result<(), Damage> {
        let (artifact, state) = match (self.look_here(&output.id), self.is_shared()) {
            (Ok(artifact), _) => (Some(artifact), Ok(())),
            (Err(Damage::Released), false) => {
                (self.release_of(&output.id).map(|note| note.artifact), Err(Damage::Released))
            }
            // The local copy of a shared store may lack files that are there.
            (Err(_), _) => {
                self.check(&output.id)?;
                (self.artifact(&output.id), Ok(()))
            }
        };
        if artifact.is_some_and(|artifact| output.fits(&artifact)) { state } else { Err(Damage::Corrupt) }
    }

    /// Returns entries of an artifact's folder that its description does not name or that are not regular files. Links
    /// are not followed.
    pub fn strangers(&self, id: &ArtifactId, artifact: &Artifact) -> Vec<String> {
        let folder = self.artifact_folder(id);
        let mut known: BTreeSet<&str> = artifact.parts.iter().map(|part| part.name.as_str()).collect();
        if is_in_folder(&folder) {
            known.insert(IN_FOLDER);
        }
        let mut found = Vec::new();
        let mut pending = vec![folder.clone()];
        while let Some(current) = pending.pop() {
            for entry in fs::read_dir(&current).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = path.strip_prefix(&folder).unwrap_or(&path).to_string_lossy().into_owned();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => pending.push(path),
                    Ok(kind) if kind.is_file() && known.contains(name.as_str()) => {}
                    _ => found.push(name),
                }
            }
        }
        found.sort();
        found
    }

    /// Returns the description of a local artifact, judged by sizes and times. A folder must contain nothing else,
    /// since its readers may read everything; of a table, only the parts are opened.
    fn look_here(&self, id: &ArtifactId) -> Result<Artifact, Damage> {
        let folder = self.artifact_folder(id);
        let Some(Described { artifact, path, at: described }) = self.described_here(id) else {
            // A folder without a description of its artifact is damage, not absence.
            if folder.exists() {
                return Err(Damage::Corrupt);
            }
            return Err(if self.release_of(id).is_some() { Damage::Released } else { Damage::Missing });
        };
        let mut read = false;
        for part in &artifact.parts {
            read |= look_at(&folder, part, described)?;
        }
        if matches!(artifact.artifact_type, ArtifactType::Tree { .. }) && !self.strangers(id, &artifact).is_empty() {
            return Err(Damage::Corrupt);
        }
        // The description gets a new time: its files need not be read again. After all of them were judged, since it
        // would hide a change of one that was not.
        if read && let Err(error) = nofollow::open(&path).and_then(|file| file.set_modified(SystemTime::now())) {
            tracing::debug!("cannot mark {} as verified; it will be read again: {error}", path.display());
        }
        Ok(artifact)
    }

    /// Whether a local part is intact. It is read only if it changed after the artifact was described.
    pub(crate) fn has_part(&self, id: &ArtifactId, part: &Part) -> bool {
        let folder = self.artifact_folder(id);
        let descriptions = [self.description_path(id), folder.join(IN_FOLDER)];
        let described = descriptions.iter().find_map(|path| path.metadata().ok()?.modified().ok());
        look_at(&folder, part, described).is_ok()
    }

    /// Reads every file of an artifact and compares digests.
    ///
    /// # Errors
    /// The damage.
    pub fn verify(&self, id: &ArtifactId) -> Result<(), Damage> {
        self.bring(id)?;
        self.read_whole(id)
    }

    /// Fetches an artifact if needed, reads every file and compares digests; for inputs, before a kernel opens them. A
    /// damaged local artifact is fetched again from the shared store, if any, and marked as changed.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached; the inner error is the damage.
    pub fn intact(&self, id: &ArtifactId) -> Result<Result<(), Damage>, StoreError> {
        if let Err(damage) = self.fetch(id)? {
            return Ok(Err(damage));
        }
        let state = match self.read_whole(id) {
            // Fetched files are compared with their digests on arrival.
            Err(_) if self.is_shared() => self.fetch(id)?,
            state => state,
        };
        if state.is_ok() {
            self.intact_ids().insert(*id);
        }
        Ok(state)
    }

    /// Verifies an artifact like [`Store::intact`], at most once while this store is open. Files written by this store
    /// count as verified.
    ///
    /// # Errors
    /// Fails like [`Store::intact`].
    pub fn intact_once(&self, id: &ArtifactId) -> Result<Result<(), Damage>, StoreError> {
        let is_verified = self.intact_ids().contains(id);
        if is_verified { self.fetch(id) } else { self.intact(id) }
    }

    /// Reads every local file and compares digests.
    pub(super) fn read_whole(&self, id: &ArtifactId) -> Result<(), Damage> {
        self.check_here(id)?;
        let folder = self.artifact_folder(id);
        let described = self.described_here(id).ok_or(Damage::Missing)?;
        let damaged: Vec<&Part> = described.artifact.parts.par_iter().filter(|part| !is_whole(&folder, part)).collect();
        for part in &damaged {
            let (path, mut later) = (folder.join(&part.name), SystemTime::now());
            if let Some(at) = described.at {
                // The clock may have been set back since.
                later = later.max(at + Duration::from_secs(1));
            }
            // It looks changed now: every later check reads it, in any artifact that shares the file.
            if let Err(error) = nofollow::open(&path).and_then(|file| file.set_modified(later)) {
                tracing::warn!("{} is damaged and cannot be marked as changed: {error}", path.display());
            }
        }
        if damaged.is_empty() { Ok(()) } else { Err(Damage::Corrupt) }
    }

    /// Fetches an artifact if possible. An unreachable store counts as one that lacks it.
    ///
    /// # Errors
    /// The damage.
    pub fn bring(&self, id: &ArtifactId) -> Result<(), Damage> {
        self.fetch(id).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Err(Damage::Missing)
        })
    }

    /// Removes a damaged artifact, so that the next commit of equal content can replace it.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub fn discard(&self, id: &ArtifactId) -> Result<(), StoreError> {
        let Some(trash) = self.uninstall(id)? else { return Ok(()) };
        nofollow::remove(&trash).context("remove", &trash)
    }

    /// Opens an artifact as the input of a kernel.
    ///
    /// # Errors
    /// Fails if it is missing, of a kind that this build does not know, or a damaged folder.
    pub fn open_input(&self, id: &ArtifactId) -> Result<InputArtifact, StoreError> {
        if let (Err(damage), true) = (self.fetch(id)?, self.is_shared()) {
            return Err(StoreError::Damaged(*id, damage));
        }
        // A description of an earlier version moves out of the folder. If that fails, as in a read-only store, it stays
        // there and still counts. A rename keeps its time, by which the files are judged.
        let (inside, beside) = (self.artifact_folder(id).join(IN_FOLDER), self.description_path(id));
        if !beside.exists()
            && read_description(&inside, id).is_some()
            && let Err(error) = self.rename(&inside, &beside)
        {
            tracing::debug!("cannot move {}: {error}", inside.display());
        }
        let artifact = self.artifact_here(id);
        let port_type = artifact.as_ref().and_then(|artifact| artifact.artifact_type.port_type());
        let (Some(artifact), Some(port_type)) = (artifact, port_type) else {
            return Err(match self.release_of(id) {
                Some(note) => StoreError::Released(*id, note.words()),
                None => StoreError::Gone(*id),
            });
        };
        match port_type {
            PortType::Rows(kind) => self.open_rows(id, &artifact, kind).map(InputArtifact::Rows),
            PortType::Tree(kind) => {
                self.check_here(id).map_err(|damage| StoreError::Damaged(*id, damage))?;
                let (path, digest) = (self.artifact_folder(id), id.to_string());
                Ok(InputArtifact::Tree(TreeInput { kind, path, digest }))
            }
        }
    }

    fn open_rows(&self, id: &ArtifactId, artifact: &Artifact, kind: RecordKind) -> Result<RowsInput, StoreError> {
        let folder = self.artifact_folder(id);
        let parts: Vec<PathBuf> = artifact.parts.iter().map(|part| folder.join(&part.name)).collect();
        let schema = match parts.first() {
            None => kind.schema(),
            Some(path) => match ParquetRecordBatchReaderBuilder::try_new(File::open(path).context("open", path)?) {
                Ok(reader) => reader.schema().clone(),
                Err(error) => return Err(StoreError::DamagedPart(path.clone(), error)),
            },
        };
        let digests = artifact.parts.iter().map(|part| part.digest.hex()).collect();
        Ok(RowsInput::from_parts(kind, schema, artifact.rows(), id.to_string(), parts).with_part_digests(digests))
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use searchmill_schemas::{Document, to_batch};

    use super::*;
    use crate::operator::OutputSink;
    use crate::store::StoreSink;

    fn made(store: &Store) -> ArtifactId {
        let ports = IndexMap::from([("rows".to_owned(), PortType::Rows(RecordKind::Document))]);
        let mut sink = StoreSink::new(store, ports);
        let row = Document { id: "a".to_owned(), title: None, text: "some words".to_owned(), metadata: None };
        sink.write("rows", &to_batch(&[row]).unwrap()).unwrap();
        sink.commit().unwrap().outputs["rows"].id
    }

    #[test]
    fn a_byte_that_changed_without_a_trace_is_found_once_it_is_read_and_believed_by_nobody_after_that() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let id = made(&store);
        let part = store.artifact_folder(&id).join("part-00000.parquet");
        let before = fs::metadata(&part).unwrap().modified().unwrap();
        let mut bytes = fs::read(&part).unwrap();
        bytes[20] ^= 1;
        fs::write(&part, &bytes).unwrap();
        File::options().append(true).open(&part).unwrap().set_modified(before).unwrap();
        assert_eq!(store.check(&id), Ok(()), "it looks untouched");
        assert_eq!(store.intact_once(&id).unwrap(), Ok(()), "this process has written it");
        let other = Store::open(folder.path()).unwrap();
        assert_eq!(other.intact_once(&id).unwrap(), Err(Damage::Corrupt));
        assert_eq!(
            (store.check(&id), Store::look(folder.path()).unwrap().check(&id)),
            (Err(Damage::Corrupt), Err(Damage::Corrupt))
        );
        assert_eq!(made(&other), id, "made again, it takes the place of what was damaged");
        assert_eq!((other.check(&id), other.intact(&id).unwrap()), (Ok(()), Ok(())));
    }
}
