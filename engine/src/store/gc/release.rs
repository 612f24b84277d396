//! Released artifacts: files that were removed on record, because what made them can make them again.
//!
//! `released/ab/<artifact id>.json` holds the description of the artifact, whose digest is the id, and the node that made
//! it. It is written and flushed before the files go, and removed once they are there again. While the files exist, it
//! does not count: whoever is killed in between leaves an ordinary artifact. Without files and without such a note, an
//! artifact is missing.
//!
//! Nothing is released while another process uses the store: it may have looked the artifact up. Whoever begins to use a
//! store announces itself behind a lock (`leases/door`), which is held here from the look at the others until the files
//! are gone.
//!
//! Of a shared store, only this machine's copy goes, if the store has the artifact whole: that is no release, and leaves
//! no note.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::producers::Makers;
use crate::node_id::NodeId;
use crate::store::artifacts::artifact::{Artifact, ArtifactId};
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{clear, remove};
use crate::store::layout::Store;
use crate::store::lease::StoreUse;
use crate::store::lease::claim_file::Neighbours;
use crate::store::nofollow;
use crate::store::paths::release_place;
use crate::store::records::pins::Pin;

/// The note of a release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// The released artifact.
    pub artifact: Artifact,
    /// What made it, and when it was released.
    #[serde(flatten)]
    pub of: Releasing,
}

/// What is released, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Releasing {
    /// The node.
    pub node: NodeId,
    /// The pipeline of that node.
    pub pipeline: String,
    /// Unix time in seconds.
    pub time: f64,
}

impl Release {
    /// Returns how to get the files back, after `it was`.
    pub fn words(&self) -> String {
        let Releasing { node, pipeline, .. } = &self.of;
        format!("released to save space; `searchmill run FILE {node}`, with the file of `{pipeline}`, makes it again")
    }
}

/// Files that were released and are still to be removed.
#[derive(Debug, Default)]
pub struct Trash {
    pub(crate) folders: Vec<PathBuf>,
    /// Their size.
    pub bytes: u64,
}

impl Trash {
    /// Removes the files. If this process is killed, the next one removes them.
    ///
    /// # Errors
    /// Fails if they cannot be removed.
    pub fn empty(self) -> Result<u64, StoreError> {
        for folder in &self.folders {
            remove(folder)?;
        }
        Ok(self.bytes)
    }
}

impl Store {
    fn release_path(&self, id: &ArtifactId) -> PathBuf {
        self.root().join(release_place(id))
    }

    /// Returns the note of an artifact's release; `None` if its files are here, or if it was not released.
    pub fn release_of(&self, id: &ArtifactId) -> Option<Release> {
        let note: Release = serde_json::from_slice(&fs::read(self.release_path(id)).ok()?).ok()?;
        if note.artifact.id() == *id && !self.artifact_folder(id).exists() { Some(note) } else { None }
    }

    /// Removes the note of a release: the files are there again, or nothing refers to the artifact.
    pub(crate) fn forget_release(&self, id: &ArtifactId) {
        let path = self.release_path(id);
        if path.exists() {
            clear(&path);
        }
    }

    /// Releases artifacts of a node, or returns `None` while another process uses the store. `using`: this process's use
    /// of it; `neighbours`: what this process has seen of the others. Artifacts that are not whole here stay.
    ///
    /// # Errors
    /// Fails if a note cannot be written or files cannot be moved; nothing is lost then.
    pub fn release(
        &self,
        ids: &[ArtifactId],
        of: &Releasing,
        using: &StoreUse,
        neighbours: &mut Neighbours,
    ) -> Result<Option<Trash>, StoreError> {
        let path = self.door_path();
        // Locked until the files are gone: a process that begins to use the store waits here before it looks around.
        let door = nofollow::open_or_create(&path).context("open", &path)?;
        if door.lock().is_err() || using.guard.as_ref().is_none_or(|own| !self.is_alone_beside(own, neighbours)) {
            return Ok(None);
        }
        let mut trash = Trash::default();
        for id in ids {
            self.release_output(id, of, &mut trash)?;
        }
        Ok(Some(trash))
    }

    /// Moves an artifact's files to `tmp/`. The caller excludes all others.
    pub(crate) fn release_output(&self, id: &ArtifactId, of: &Releasing, trash: &mut Trash) -> Result<(), StoreError> {
        let Some(artifact) = self.artifact_here(id) else { return Ok(()) };
        if let Some(remote) = &self.remote {
            if remote.check(id).is_err() {
                return Ok(());
            }
        } else if self.check_here(id).is_err() {
            // Damage is found and repaired by whoever needs it.
            return Ok(());
        } else {
            // Before the files go: without them, only the note tells a released artifact from a lost one.
            let note = Release { artifact: artifact.clone(), of: of.clone() };
            self.write_file(&self.release_path(id), &serde_json::to_vec(&note)?)?;
        }
        // If the artifact is made again, the new files are verified anew.
        self.intact_ids().remove(id);
        trash.bytes += artifact.bytes();
        trash.folders.extend(self.uninstall(id)?);
        Ok(())
    }

    /// Moves an artifact here from another store on the same file system.
    ///
    /// # Errors
    /// Fails if it cannot be moved.
    pub fn take_over(&self, from: &Self, id: &ArtifactId) -> Result<(), StoreError> {
        let Some(artifact) = from.artifact_here(id) else { return Err(StoreError::GoneFrom(*id, from.address())) };
        self.install(id, &artifact, &from.artifact_folder(id))
    }

    /// Returns the artifacts that pins protect.
    pub fn pinned_artifacts(&self, pins: &[Pin]) -> BTreeSet<ArtifactId> {
        let mut found: BTreeSet<ArtifactId> = pins.iter().map(|pin| pin.artifact).collect();
        let whole: Vec<&Pin> = pins.iter().filter(|pin| pin.lineage).collect();
        // Reading all results takes long.
        if whole.is_empty() {
            return found;
        }
        let makers = Makers::read(self);
        for pin in whole {
            let start = makers.chosen(pin.key, &pin.artifact, &BTreeSet::new());
            for key in makers.ancestry(&start, &BTreeSet::new()) {
                let Some(result) = makers.result(&key) else { continue };
                found.extend(result.outputs.values().map(|output| output.id));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Damage;
    use crate::store::gc::collect::tests::made;

    fn of() -> Releasing {
        Releasing { node: "step@round=7".into(), pipeline: "rl".to_owned(), time: 1.0 }
    }

    #[test]
    fn what_was_released_is_no_damage_and_what_is_lost_is() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (one, lost) = (made(&store, "a"), made(&store, "b"));
        let (id, gone) = (one.outputs["rows"].id, lost.outputs["rows"].id);
        let using = store.enter().unwrap();
        let mut neighbours = Neighbours::default();
        let artifact = store.artifact(&id).unwrap();
        let trash = store.release(&[id], &of(), &using, &mut neighbours).unwrap().unwrap();
        assert!(trash.bytes > 0 && !store.artifact_folder(&id).exists());
        trash.empty().unwrap();
        assert_eq!(store.check_output(&one.outputs["rows"]), Err(Damage::Released));
        assert_eq!((store.check(&id), store.intact(&id).unwrap()), (Err(Damage::Released), Err(Damage::Released)));
        assert_eq!(store.release_of(&id).unwrap(), Release { artifact, of: of() });
        fs::remove_dir_all(store.artifact_folder(&gone)).unwrap();
        assert_eq!(store.check_output(&lost.outputs["rows"]), Err(Damage::Missing));
        // A record that does not fit what was released is wrong.
        let forged = crate::store::records::node_result::OutputRecord { rows: 7, ..one.outputs["rows"].clone() };
        assert_eq!(store.check_output(&forged), Err(Damage::Corrupt));
        // Made again, it is an ordinary artifact; lost after that, it is missing.
        made(&store, "a");
        assert_eq!((store.check(&id), store.release_of(&id)), (Ok(()), None));
        fs::remove_dir_all(store.artifact_folder(&id)).unwrap();
        assert_eq!(store.check(&id), Err(Damage::Missing));
    }

    #[test]
    fn a_note_without_a_release_does_not_count_and_a_forged_one_never() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (one, other) = (made(&store, "a"), made(&store, "b"));
        let id = one.outputs["rows"].id;
        // Killed between the note and the move.
        let written = Release { artifact: store.artifact(&id).unwrap(), of: of() };
        store.write_file(&store.release_path(&id), &serde_json::to_vec(&written).unwrap()).unwrap();
        assert_eq!((store.check(&id), store.release_of(&id)), (Ok(()), None));
        fs::remove_dir_all(store.artifact_folder(&id)).unwrap();
        let forged = Release { artifact: store.artifact(&other.outputs["rows"].id).unwrap(), of: of() };
        fs::write(store.release_path(&id), serde_json::to_vec(&forged).unwrap()).unwrap();
        assert_eq!(store.check(&id), Err(Damage::Missing));
    }

    #[test]
    fn nothing_is_released_beside_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let id = made(&store, "a").outputs["rows"].id;
        let (using, mut neighbours) = (store.enter().unwrap(), Neighbours::default());
        let other = Store::open(folder.path()).unwrap();
        let theirs = other.enter().unwrap();
        assert!(store.release(&[id], &of(), &using, &mut neighbours).unwrap().is_none());
        assert_eq!(store.check(&id), Ok(()));
        drop(theirs);
        assert!(store.release(&[id], &of(), &using, &mut neighbours).unwrap().is_some());
    }
}
