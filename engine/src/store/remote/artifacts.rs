//! Artifacts of a shared store: checks, fetches and uploads them.

use std::path::{Component, Path as FilePath, PathBuf};

use object_store::path::Path;

use super::flights::OnlyFetch;
use super::objects::Reply;
use super::{Remote, objects};
use crate::fingerprint::hash_file;
use crate::store::artifacts::artifact::{Artifact, ArtifactId, Part};
use crate::store::error::{Damage, IoContext, StoreError};
use crate::store::files::clear;
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::paths::artifact_place;

/// The object that describes an artifact.
const DESCRIPTION: &str = "artifact.json";

fn object_path(id: &ArtifactId, name: &str) -> Path {
    Path::from(format!("{}/{name}", artifact_place(id)))
}

/// Returns the name of a part's object: that of the description is taken.
fn object_name(part: &str) -> String {
    if part.starts_with(DESCRIPTION) { format!("{part}~") } else { part.to_owned() }
}

/// Whether the name stays below the artifact's folder.
fn is_below(name: &str) -> bool {
    !name.is_empty() && FilePath::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

impl Remote {
    /// Returns the description of an artifact if it exists and matches its id.
    pub(in crate::store) fn artifact(&self, id: &ArtifactId) -> Option<Artifact> {
        if let Some(known) = self.learnt().descriptions.get(id) {
            return Some(known.clone());
        }
        let found = self.ask("read an artifact of", objects::get(&self.objects, &object_path(id, DESCRIPTION)))?;
        let artifact: Artifact = serde_json::from_slice(&found.0).ok()?;
        if artifact.id() != *id || !artifact.parts.iter().all(|part| is_below(&part.name)) {
            return None;
        }
        self.learnt().descriptions.insert(*id, artifact.clone());
        Some(artifact)
    }

    /// Checks that all files exist with their sizes, using what was learnt before.
    pub(in crate::store) fn check(&self, id: &ArtifactId) -> Result<(), Damage> {
        if self.learnt().broken.contains(id) {
            return Err(Damage::Corrupt);
        }
        if self.learnt().whole.contains(id) {
            return Ok(());
        }
        let artifact = self.artifact(id).ok_or(Damage::Missing)?;
        let there = self.ask("list", objects::list(&self.objects, &Path::from(artifact_place(id))));
        for part in &artifact.parts {
            let name = Path::from(object_name(&part.name));
            match there.iter().find(|found| found.name == name.as_ref()) {
                Some(found) if found.bytes == part.bytes => {}
                Some(_) => return Err(Damage::Corrupt),
                None => return Err(Damage::Missing),
            }
        }
        self.learnt().whole.insert(*id);
        Ok(())
    }

    /// Fetches all files of an artifact into a folder and compares their digests.
    fn fetch(&self, id: &ArtifactId, folder: &FilePath) -> Result<Result<Artifact, Damage>, StoreError> {
        let Some(artifact) = self.artifact(id) else { return Ok(Err(Damage::Missing)) };
        let fetches = artifact.parts.iter().map(|part| self.fetch_part(id, part, folder.join(&part.name)));
        let fetched = self.call("fetch an artifact from", objects::all(fetches))?;
        let Some(damage) = fetched.into_iter().find_map(Result::err) else { return Ok(Ok(artifact)) };
        let short = id.digest().short();
        tracing::warn!("the artifact {short} is damaged in the shared store ({damage}): it counts as missing");
        // Its maker, which runs again, then uploads all of it, although objects of these names are there.
        self.learnt().broken.insert(*id);
        Ok(Err(damage))
    }

    /// Fetches a file and compares its digest.
    async fn fetch_part(&self, id: &ArtifactId, part: &Part, file: PathBuf) -> Reply<Result<(), Damage>> {
        if !objects::download(&self.objects, &object_path(id, &object_name(&part.name)), &file).await? {
            return Ok(Err(Damage::Missing));
        }
        let digest = tokio::task::spawn_blocking(move || hash_file(&file)).await;
        let same = matches!(digest, Ok(Ok(digest)) if digest == part.digest);
        Ok(if same { Ok(()) } else { Err(Damage::Corrupt) })
    }

    /// Uploads an artifact, its description last. Skips it if it is complete there, unless it was damaged.
    pub(super) fn send(&self, id: &ArtifactId, artifact: &Artifact, folder: &FilePath) -> Result<(), StoreError> {
        let broken = self.learnt().broken.contains(id);
        if !broken && self.check(id).is_ok() {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(artifact)?;
        self.call("send an artifact to", async {
            let parts = artifact.parts.iter().map(async |part| {
                let object = object_path(id, &object_name(&part.name));
                objects::upload(&self.objects, object, &folder.join(&part.name)).await
            });
            objects::all(parts).await?;
            // Last: an artifact counts as there once its description is.
            objects::put(&self.objects, &object_path(id, DESCRIPTION), text.into()).await
        })?;
        let mut learnt = self.learnt();
        learnt.broken.remove(id);
        learnt.whole.insert(*id);
        learnt.descriptions.insert(*id, artifact.clone());
        Ok(())
    }
}

impl Store {
    /// Ensures that an artifact's files are local. In a store that is not shared, this is [`Store::check`]. Of threads
    /// and processes of this machine that need it at the same time, one fetches it and the others wait.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached; the inner error is the damage.
    pub fn fetch(&self, id: &ArtifactId) -> Result<Result<(), Damage>, StoreError> {
        let here = self.check_here(id);
        let Some(remote) = self.remote.as_ref().filter(|_| here.is_err()) else { return Ok(here) };
        remote.flights.once(&id.digest(), || {
            let _alone = OnlyFetch::of(self.root(), &id.digest());
            // It came while this one waited for its turn.
            if self.check_here(id).is_ok() {
                return Ok(Ok(()));
            }
            let folder = self.temporary();
            nofollow::create_folder(&folder).context("create", &folder)?;
            let fetched = remote.fetch(id, &folder).and_then(|fetched| match fetched {
                Ok(artifact) => self.settle(id, &artifact, &folder).map(|_| Ok(())),
                Err(damage) => Ok(Err(damage)),
            });
            clear(&folder);
            fetched
        })
    }

    /// Uploads a local artifact.
    pub(super) fn send_artifact(&self, id: &ArtifactId) -> Result<(), StoreError> {
        match (&self.remote, self.artifact_here(id)) {
            (Some(remote), Some(artifact)) => remote.send(id, &artifact, &self.artifact_folder(id)),
            _ => Ok(()),
        }
    }
}
